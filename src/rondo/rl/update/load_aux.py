"""Loading of auxiliary models that read the policy's tokens, such as a teacher or the initial critic."""

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
    """Load a model with the policy's vocabulary. Tokens are never re-encoded from text, so the vocabularies must be
    equal.
    """
    folder = resolve(model)
    if Tokenizer.load(folder).vocabulary != tokenizer.vocabulary:
        raise ConfigError(
            f"{model} has another tokenizer than the policy, and cannot read its tokens: choose a model with the "
            "policy's own",
            param=param,
        )
    return models.load(folder, dtype=dtype, device=device)
