"""Structured output: JSON schemas, regular expressions, grammars and choices as token masks, with `llguidance`.

Grammars are compiled once, next to the engine's steps, and cached. Only requests that use a new grammar wait for its
compilation. `llguidance` is imported with the first such request.
"""
