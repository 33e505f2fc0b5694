"""Rollout collection: prompts, seeds, engine, staleness limit and scores.

`sync_collector.py` generates between updates, `async_collector.py` generates during updates within the limit of
`staleness.py`, and `scoring.py` runs graders while other samples are still being generated. On several ranks
`rank_collectors.py` divides the rollouts, and `replica.py` holds the weights of an engine. Read `types.py`, then
`requests.py`.
"""
