"""Models beside the policy that are given its tokens: a teacher, or what a critic begins as."""

from __future__ import annotations

import torch

from rondo import models
from rondo.base.errors import ConfigError
from rondo.models import Decoder
from rondo.models.store import resolve
from rondo.text.tokenizer import Tokenizer


def load_beside(
    model: str, tokenizer: Tokenizer, param: str, device: torch.device, dtype: torch.dtype | None = None
) -> Decoder:
    """Token ids are never made anew from text, so they have to mean the same to it."""
    folder = resolve(model)
    if Tokenizer.load(folder).vocabulary != tokenizer.vocabulary:
        raise ConfigError(
            f"{model} has another tokenizer than the policy, and cannot read its tokens: choose a model with the "
            "policy's own",
            param=param,
        )
    return models.load(folder, dtype=dtype, device=device)
