"""Verbs that send requests to a gateway: queued prompts, batches, files and the registry. One module per verb;
`remote.py` has the address and the key."""
