"""Execution of a plan: one forward pass over a flat row of tokens, then sampling.

`layout.py` arranges the tokens, `attend.py` writes and reads the paged KV cache, `graphs.py` (CUDA graphs) and
`compiled.py` (one C call on a CPU) replace the eager forward pass where they apply, and `sampler.py` draws the tokens
of the whole batch. Read `runner.py` first.
"""
