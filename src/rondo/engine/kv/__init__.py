"""KV cache: block allocation, prefix caching, sliding windows, and swapping of preempted requests to host memory.

`blocks.py` owns block ids and the prefix hash table; `groups.py` combines the pools of all layer groups; `cache.py`
allocates the tensors; `swap.py` decides and `host.py` copies;
`events.py` reports the cached prefixes to routers. Everything except `cache.py` and `host.py` is pure
Python.
"""
