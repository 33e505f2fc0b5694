"""Checkpoint files: memory-mapped reading and writing of safetensors, config headers, and the mapping of tensor names.

`checkpoint.py` loads a folder into a decoder and saves one; `mapping.py` maps our parameter names to Hugging Face's.
"""
