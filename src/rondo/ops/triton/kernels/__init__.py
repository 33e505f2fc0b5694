"""Triton kernels. Imported only if Triton is available."""
