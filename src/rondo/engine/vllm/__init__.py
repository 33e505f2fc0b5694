"""vLLM behind the `Engine` protocol: as a child process over HTTP, or inside this process (direct mode).

`engine.py` is the asynchronous engine, `remote.py` vLLM as a child process that is restarted when it ends, `client.py`
its HTTP client, `direct.py` the mode without HTTP, `options.py` the translation of our settings into vLLM's. `child/`
starts and watches the process. Read `backend.py` first.
"""
