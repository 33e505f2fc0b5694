"""Workers: they lease queued requests from a gateway over HTTP, send them to an engine, and finish them one by one.

Inputs are leased items, each a model route with its body; outputs are results with token counts and FLOPs, and the
reasons of failures. A worker runs inside `rondo serve`, with direct calls into the application, or as `rondo worker`
beside any OpenAI-compatible engine. The package is free of torch.

    config.py   settings
    wire.py     bodies of the lease API, which the gateway's routes share
    link.py     the gateway as a worker reaches it: leases, heartbeats, results, with retries
    engines.py  the engine: in this process, or behind a URL
    room.py     number of requests that fit into the engine's free KV memory
    worker.py   the loop: lease, execute, finish, hand back
    start.py    builds a worker from settings

Read `worker.py` first.
"""
