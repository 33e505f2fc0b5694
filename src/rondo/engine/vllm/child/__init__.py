"""The vLLM child process: start, plug-ins copied into its environment, restarts after a crash.

`parent.py` and `waiting.py` run inside vLLM's process and import nothing of Rondo.
"""
