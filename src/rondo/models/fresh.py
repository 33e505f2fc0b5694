"""Random weights: a model in the architecture of a config, and the score head of a reward model."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from rondo.models.decoder import Decoder, ScoreHead
from rondo.models.families import parse
from rondo.models.files.checkpoint import build
from rondo.models.heads.scorer import ARCHITECTURE, LABELS, LANGUAGE_MODEL, scoring
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


def make_scorer(model: Decoder, seed: int = 0) -> None:
    """Replaces a language model's head by a fresh score head, in place. Its weights are Normal(0, 1/(H+1)), so that
    scores are of the order of 1 (Stiennon et al., 2020)."""
    hf = dict(model.config.hf or {})
    names = [
        str(name).removesuffix(LANGUAGE_MODEL) + ARCHITECTURE for name in hf.get("architectures") or ("",)
    ]
    model.config = replace(scoring(model.config), hf={**hf, "architectures": names, **LABELS})
    head = ScoreHead(model.config).to(model.device, model.dtype)
    head.norm = model.head.norm
    size = model.config.hidden_size
    drawn = torch.randn(1, size, generator=torch.Generator().manual_seed(seed)) / (size + 1) ** 0.5
    with torch.no_grad():
        head.out.weight.copy_(drawn)
    model.head = head
