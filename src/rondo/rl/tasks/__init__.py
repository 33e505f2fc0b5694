"""RL tasks: prompts with a grader. Built-in puzzles and games, tasks from JSON Lines, and user-defined Python tasks.

Read `registry.py` first: it defines `Task` and the lookup of a task by its name.
"""
