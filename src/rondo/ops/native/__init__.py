"""Operations in C for CPUs, compiled on this machine on first use; without a compiler, torch runs at lower speed.

Each folder has the kernels of one kind of operation, with the Python module that registers them next to the C file. An
`#include` names the header with its folder, such as `"gemm/pairs.h"`.

    build/       compilation and its cache, CPU levels, shared headers, tuning
    gemm/        linear layers and low-rank products
    attention/   attention over packed rows and over pages
    quantized/   products with quantized weights
    pointwise/   norms, activations, rotary embedding, log-probabilities, sampling
    decoder/     a whole decoder step in one call

A library's file name contains a hash of its sources, all headers, the compiler and the CPU. Read `build/build.py`
first.
"""
