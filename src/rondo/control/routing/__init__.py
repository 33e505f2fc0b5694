"""Choice of an engine for a request, and the queue of requests that wait for one. Pure logic, except for
`registrations.py`: the caller passes times.

router.py         the engine with the least pending work and the longest cached prefix
prefixes.py       prefixes in each engine's cache, from its events or from the requests that it was sent
waiting.py        requests that wait because all engines of their model are full: bands, fairness, bounds
registrations.py  engines that were registered or drained by API, in the store
"""
