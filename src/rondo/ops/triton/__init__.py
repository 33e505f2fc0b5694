"""The operations' versions for CUDA in Triton. Each module registers its own, and compiles on the first call with a
CUDA tensor. `kernels/` has the Triton code.

The splitting of a sum depends only on the row (its width, its request's length, the layer's shape), never on the number
of rows in the batch, so a row's bits are the same in every batch.
"""
