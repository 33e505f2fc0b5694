"""Products with quantized weights in C: 4-bit and 8-bit integers and FP8, and the work sharing of threads in phases."""
