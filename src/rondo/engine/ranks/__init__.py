"""Tensor-parallel inference: one process a rank, each with a slice of the model and of the KV cache.

Rank 0 schedules and broadcasts external events (requests, aborts, adapters, weight updates); the other ranks repeat the
same deterministic steps. Read `tp.py` for rank 0 and `following.py` for the others.
"""
