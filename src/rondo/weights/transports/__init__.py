"""Transports of weights, each behind `fetch(source, version) -> Held`: a complete, verified model folder of this host.

`source.py` has the addresses, `segment.py` the shared memory of one host, and `landing.py` the memory into which
`http.py`, `objects.py` and `trainer_group.py` write. `serving.py` has the server that `http.py` reads from,
and `deltas.py` the encoding of changed elements.
"""
