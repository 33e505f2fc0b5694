"""Compilation of the kernels: instruction-set levels, the compiler call, the cache of libraries, tuning of work splits.

It also has the headers shared by all kernels (`numbers.h`, `vectors.h`, `shares.h`) and the checks of tensor addresses.
`ahead.py` compiles all kernels at installation and at the start of an engine.
"""
