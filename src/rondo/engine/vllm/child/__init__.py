"""The vLLM child process: starting it, plug-ins that are copied into its environment, restarts after a crash.

`parent.py` and `waiting.py` run inside vLLM's process and import nothing of Rondo.
"""
