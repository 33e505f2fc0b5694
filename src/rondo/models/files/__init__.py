"""Checkpoint files: safetensors reading by memory map and writing, config headers, and the mapping of tensor names.

`checkpoint.py` loads a folder into a decoder and saves one; `mapping.py` translates between our names and Hugging
Face's.
"""
