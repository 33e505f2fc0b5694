"""Rollout collection: prompts, seeds, engine, staleness limit and scores.

`sync_collector.py` generates between updates, `async_collector.py` generates during updates within the limit of
`staleness.py`, and `scoring.py` runs graders while other samples are still being generated. Read `types.py`, then
`requests.py`.
"""
