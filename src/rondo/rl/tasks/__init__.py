"""RL tasks: prompts with a grader. Built-in puzzles and games, tasks from JSON Lines, and a user's own Python.

Read `registry.py` first: it defines `Task` and finds a task by its name.
"""
