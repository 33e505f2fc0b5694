"""One module for each verb of the `rondo` command. `main.py` imports a module when its verb runs.

Heavy imports (torch, the engine, the learner) are made inside `run`, after the flags have been checked.
"""
