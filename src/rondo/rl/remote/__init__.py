"""Remote engines: our server or vLLM behind URLs, a pool that balances and retries, weight push, and Ray.

`servers.py` translates requests to each kind of server, `engine_pool.py` sends a request to the least loaded engine and
repeats it elsewhere when an engine is lost.
"""
