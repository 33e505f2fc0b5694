"""Quantized checkpoints: GPTQ, AWQ, compressed-tensors and FP8 are converted to one representation, and written back.

`scheme.py` parses `quantization_config`, `formats.py` unpacks each format, `reading.py` reads a checkpoint tensor by
tensor, and `quantize/` quantizes a model. Read `scheme.py` first.
"""
