"""Verbs of the service: `rondo up` with its parts, the gateway, its keys and its store. One module per verb."""
