"""Front ends of the engine: `LLM` for scripts and rollouts, `AsyncEngine` for servers, and loading of a model folder.

`async_engine.py` runs the core in a thread of its own: commands arrive through `inbox.py`, tokens leave through
`streams.py`, and `output.py` turns tokens into text with stop strings. Read `llm.py` first.
"""
