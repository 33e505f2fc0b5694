"""Quantized checkpoints: GPTQ, AWQ, compressed-tensors and FP8 are converted to one representation, and written back.

`methods.py` parses `quantization_config` to the types of `scheme.py`, `formats.py` unpacks each format, `reading.py`
reads a checkpoint tensor by tensor, and `quantize/` quantizes a model. Read `scheme.py` first.
"""
