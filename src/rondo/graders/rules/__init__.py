"""Deterministic graders without a model: match, multiple choice, mathematics, format, regex, JSON schema, similarity.

Each module is one grader or one helper of graders. Read `match.py` first.
"""
