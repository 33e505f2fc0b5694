"""Remote engines: `rondo serve` or vLLM over HTTP, load balancing with retries, weight push, and Ray.

`servers.py` translates requests for each kind of server; `engine_pool.py` sends a request to the least loaded engine
and retries it on another engine after a failure. `push.py` publishes each version of the policy's weights, and
`offer.py` selects the transport of each engine. With several ranks on one host each of them writes its shards
(`rank_policy.py`).
"""
