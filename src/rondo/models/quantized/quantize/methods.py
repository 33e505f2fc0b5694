"""The quantization methods. Imports no torch."""

from __future__ import annotations

from typing import Literal

Method = Literal["awq", "gptq", "int8", "fp8", "nf4"]
METHODS: dict[Method, str] = {
    "awq": "4 bits, chosen by what the inputs of a text show (AutoAWQ's format)",
    "gptq": "4 bits, errors made good column by column (AutoGPTQ's format)",
    "int8": "8 bits, activations too (compressed-tensors)",
    "fp8": "8 bits as floats (compressed-tensors)",
    "nf4": "4 bits as normal floats, without calibration; the base of QLoRA (bitsandbytes)",
}
CALIBRATED: tuple[Method, ...] = ("awq", "gptq")
