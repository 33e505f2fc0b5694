"""A policy that says beside each token what is still to be earned: a critic that shares the policy's layers."""

from __future__ import annotations

import torch

from rondo.base.errors import ModelError
from rondo.models.decoder import Decoder
from rondo.models.parts import Linear


def add_value_head(model: Decoder) -> None:
    """In place; it says 0 until it is trained. Neither a checkpoint in Hugging Face's layout nor an engine knows of
    it."""
    if model.config.scores or model.head.value is not None:
        raise ModelError("a value head needs a language model without a value head", param="model")
    value = Linear(model.config.hidden_size, 1, bias=False).to(model.device, model.dtype)
    torch.nn.init.zeros_(value.weight)
    model.head.value = value
