"""Tensor parallelism: slices of attention heads, neurons and vocabulary, sequence-parallel rows, loading of slices."""
