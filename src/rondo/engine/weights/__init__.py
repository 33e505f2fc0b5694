"""Weights that change while the engine runs: LoRA adapters, weight updates, sleep mode.

`adapters.py` is the registry of served adapters, `adapter_loader.py` loads them next to the engine's steps,
`weight_reload.py` reads a new version of the base model and swaps it in between two steps, `weight_session.py`
implements vLLM's multi-step weight update, and `sleep.py` frees and restores device memory.
"""
