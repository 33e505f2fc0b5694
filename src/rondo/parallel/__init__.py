"""Tensor parallelism for a decoder that knows nothing of it: each rank holds, reads and computes its slice."""
