"""Linear layers in C: products in FP32 and BF16 (AVX2, AVX-512, AMX), matrix-vector products, and low-rank products.

`product.h` chooses among `gemv.h`, `gemm_bf16.h` and `gemm_amx.h`. The bits of a row do not depend on the number of
rows.
"""
