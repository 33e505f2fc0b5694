"""Value head on a policy: a critic that shares the policy's layers and predicts the return after each token."""

from __future__ import annotations

import torch

from rondo.base.errors import ModelError
from rondo.models.decoder import Decoder
from rondo.models.parts import Linear


def add_value_head(model: Decoder) -> None:
    """Adds a value head in place. It outputs 0 until it is trained. Checkpoints in Hugging Face's layout and engines do
    not contain it."""
    if model.config.scores or model.head.value is not None:
        raise ModelError("a value head needs a language model without a value head", param="model")
    value = Linear(model.config.hidden_size, 1, bias=False).to(model.device, model.dtype)
    torch.nn.init.zeros_(value.weight)
    model.head.value = value
