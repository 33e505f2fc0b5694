"""vLLM behind the `Engine` protocol: as a child process over HTTP, or inside this process (direct mode).

`engine.py` is the asynchronous engine over HTTP, `direct.py` the mode without HTTP, `remote.py` vLLM's verbs for
weights, sleep and adapters, `options.py` the translation of our settings into vLLM's. `child/` starts and watches the
process. Read `backend.py` first.
"""
