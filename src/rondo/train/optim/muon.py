"""Muon for the matrices between embedding and head, AdamW for all other parameters, as one optimizer."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn

from rondo.base.errors import ConfigError
from rondo.train.config import OptimConfig

APART = ("embed.", "head.", "router.")
"""Name parts of matrices whose rows represent separate tokens or experts: embeddings, the head, and routers."""


class MuonAndAdamW(torch.optim.Optimizer):
    """PyTorch's Muon and AdamW. Muon's steps are scaled to the size of AdamW's (Liu et al., 2025), so that one learning
    rate and one weight decay suit both.
    """

    def __init__(
        self, model: nn.Module, config: OptimConfig, adamw: Callable[..., torch.optim.AdamW]
    ) -> None:
        trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
        hidden = [p for name, p in trained.items() if is_hidden_matrix(name, p)]
        if not hidden:
            raise ConfigError("there is no hidden matrix to train: use adamw", param="train.optimizer")
        muon = torch.optim.Muon(
            hidden,
            lr=config.lr,
            weight_decay=config.weight_decay,
            momentum=config.momentum,
            adjust_lr_fn="match_rms_adamw",
        )
        others = {name: p for name, p in trained.items() if not is_hidden_matrix(name, p)}
        self._parts: list[torch.optim.Optimizer] = [muon, *([adamw(others, config)] if others else [])]
        super().__init__([group for part in self._parts for group in part.param_groups], {})

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Steps each part's own groups, on the state that all parts share."""
        groups: Iterator[dict[str, Any]] = iter(self.param_groups)
        for part in self._parts:
            part.param_groups = [next(groups) for _ in part.param_groups]
            part.state = self.state
            part.step(closure)


def is_hidden_matrix(name: str, parameter: nn.Parameter) -> bool:
    """Whether Muon trains the parameter. Stacked experts are no matrices for PyTorch's Muon: AdamW trains them and
    their biases.
    """
    return parameter.ndim == 2 and not name.endswith("bias") and not any(part in name for part in APART)
