"""Quantization of a model (`rondo model quantize`): round to nearest, GPTQ and AWQ, with calibration text and a
measurement of the perplexity before and after. Read `making.py` first."""
