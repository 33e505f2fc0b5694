"""Code of the sandbox's own processes: Python's standard library alone, no other module of Rondo.

A worker (`zygote`) imports this folder as the package `inside`, so that it starts in milliseconds and holds nothing
that a program could read. Imports in this package are relative for that reason.
"""
