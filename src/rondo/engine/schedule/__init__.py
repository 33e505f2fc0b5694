"""Token-budget scheduler with continuous batching and chunked prefill.

`scheduler.py` returns a `Plan`: the requests of a step and the number of tokens of each. It uses neither a clock nor a
device, so the same state yields the same plan on every rank. `admission.py` starts and resumes waiting requests while
budget, rows and blocks last; `request.py` is the state of one sample; `intake.py` validates new requests. Read
`plan.py`, then `scheduler.py`.
"""
