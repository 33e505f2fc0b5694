"""Numeric dtypes: their codes in C (`numbers.h`), and their names for display."""

from __future__ import annotations

import torch

GIVEN = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2}
"""Dtypes of activations."""
KEPT = GIVEN | {torch.int8: 3, torch.float8_e4m3fn: 4}
"""Dtypes of a KV cache."""
SHORT = {torch.float32: "fp32", torch.bfloat16: "bf16", torch.float16: "fp16"}
