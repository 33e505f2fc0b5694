"""A model with random weights, in the architecture of a config."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from rondo.models.decoder import Decoder
from rondo.models.families import parse
from rondo.models.files.checkpoint import build
from rondo.models.parts import Norm


def new(hf: Mapping[str, Any], seed: int = 0, dtype: torch.dtype = torch.float32) -> Decoder:
    """Normal(0, `initializer_range`) weights, zero biases, identity norms. Deterministic in `seed`."""
    model = build(parse(hf)).to_empty(device="cpu").to(dtype)
    model.tie()
    generator = torch.Generator().manual_seed(seed)
    deviation = hf.get("initializer_range", 0.02)
    norms = {f"{name}.weight" for name, module in model.named_modules() if isinstance(module, Norm)}
    for name, parameter in model.named_parameters():
        if name in norms:
            nn.init.constant_(parameter, 1.0 - model.config.norm_offset)
        elif name.endswith(("bias", "correction", "sinks")):
            nn.init.zeros_(parameter)
        else:
            nn.init.normal_(parameter, 0.0, deviation, generator=generator)
    return model
