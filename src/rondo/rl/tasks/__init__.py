"""RL tasks: prompts with a grader. Built-in puzzles and games, tasks from JSON Lines, and user-defined Python tasks.

Read `types.py` first: it defines problems and the interface of a task. `registry.py` has the lookup by name.
"""
