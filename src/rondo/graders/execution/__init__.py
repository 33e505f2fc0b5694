"""Graders that run code: generated programs against test cases, OpenAI's `python` grader, and a user's own function."""
