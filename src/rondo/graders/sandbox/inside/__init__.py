"""What runs in the sandbox's own processes: Python's standard library alone, no other module of Rondo.

A worker (`zygote`) takes this folder as the package `inside`, so that it starts in milliseconds and holds nothing
that a program could read. Imports in here are relative for that reason.
"""
