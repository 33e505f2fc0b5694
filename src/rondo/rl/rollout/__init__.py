"""Rollout collection: which prompts, with which seeds, on which engine, at most how stale, and their scores.

`sync_collector.py` generates between updates, `async_collector.py` next to them within the limit of `staleness.py`,
`scoring.py` runs graders while other samples are still being generated. Read `types.py`, then `requests.py`.
"""
