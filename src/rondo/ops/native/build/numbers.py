"""The types of numbers: as C numbers them (`numbers.h`), and as a person reads them."""

from __future__ import annotations

import torch

GIVEN = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2}
"""What comes from a model, and goes to it."""
KEPT = GIVEN | {torch.int8: 3, torch.float8_e4m3fn: 4}
"""What a cache may keep."""
SHORT = {torch.float32: "fp32", torch.bfloat16: "bf16", torch.float16: "fp16"}
