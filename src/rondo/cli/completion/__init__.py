"""Shell completion: `rondo completion bash|zsh|fish` prints a script that calls `rondo completion --words` at each Tab.

`candidates.py` computes what may follow a command line: verbs, flags, settings and their values, models and jobs.
"""
