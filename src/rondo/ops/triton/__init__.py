"""The operations' versions for CUDA, written in Triton: each module registers its own, and compiles nothing until a
tensor on a CUDA device comes. `kernels/` holds what Triton compiles.

How a sum is cut depends on the row alone (its width, its request's length, the layer's shape), never on how many rows
are beside it; so a row's bits are the same in every batch.
"""
