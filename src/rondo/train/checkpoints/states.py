"""Tensors of a learner in a checkpoint, with the same names in every layout: `model/NAME`, `average/NAME`,
`optimizer/KEY/NAME` for each tensor in the optimizer's state of a parameter, the loss scale, and `random/RANK/DEVICE`
for each rank's generators.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from rondo.models.adapters.attached import adapter_of
from rondo.models.decoder import Decoder

MODEL, AVERAGE, OPTIMIZER, SCALE, RANDOM = "model/", "average/", "optimizer/", "loss scale/", "random/"

Shapes = dict[str, tuple[int, ...]]


@dataclass(frozen=True)
class TensorMeta:
    """Shape and type of a stored tensor, available before it is read."""

    shape: tuple[int, ...]
    dtype: torch.dtype


@dataclass(frozen=True)
class States:
    model: Decoder
    optimizer: torch.optim.Optimizer
    averages: Mapping[str, Tensor]
    scale: Mapping[str, Tensor]
    """State of the loss scale, in half precision."""

    def tensors(self) -> dict[str, Tensor]:
        """The tensors themselves, not copies."""
        found = {MODEL + name: parameter.detach() for name, parameter in self._kept().items()}
        found |= {AVERAGE + name: average for name, average in self.averages.items()}
        found |= {SCALE + name: number for name, number in self.scale.items()}
        for name, parameter in self._kept().items():
            for key, value in self.optimizer.state.get(parameter, {}).items():
                if isinstance(value, Tensor):
                    found[f"{OPTIMIZER}{key}/{name}"] = value
        return found

    def shapes(self) -> Shapes:
        """Whole shapes of the tensors that a checkpoint must have."""
        found = {MODEL + name: tuple(parameter.shape) for name, parameter in self._kept().items()}
        return found | {AVERAGE + name: tuple(average.shape) for name, average in self.averages.items()}

    def make_room(self, stored: Mapping[str, TensorMeta]) -> None:
        """Replaces the optimizer's state by empty tensors like the stored ones."""
        kept = self._kept()
        self.optimizer.state.clear()
        for label, what in stored.items():
            key, _, name = label.removeprefix(OPTIMIZER).partition("/")
            if label.startswith(OPTIMIZER) and name in kept:
                self.optimizer.state[kept[name]][key] = _like(kept[name], what)

    def _kept(self) -> dict[str, nn.Parameter]:
        """Each stored parameter once: `named_parameters` omits the second name of a tied one. With an adapter, only the
        adapter's parameters are stored: the base does not change.
        """
        whole = adapter_of(self.model) is None
        return {name: p for name, p in self.model.named_parameters() if whole or p.requires_grad}


def differences(shapes: Shapes, stored: Mapping[str, TensorMeta]) -> list[str]:
    """Names of weights that only the model or only the checkpoint has, or whose shapes differ."""
    theirs = {name: what.shape for name, what in stored.items() if name.startswith((MODEL, AVERAGE))}
    wrong = sorted(name for name in shapes.keys() | theirs.keys() if shapes.get(name) != theirs.get(name))
    return [name.removeprefix(MODEL) for name in wrong]


def _like(parameter: Tensor, what: TensorMeta) -> Tensor:
    """Zeros, sharded as the parameter is if the shapes are equal."""
    if what.shape == tuple(parameter.shape):
        return torch.zeros_like(parameter, dtype=what.dtype, requires_grad=False)
    return torch.zeros(what.shape, dtype=what.dtype, device=parameter.device)


def random_states(rank: int, device: torch.device) -> dict[str, Tensor]:
    found = {f"{RANDOM}{rank}/cpu": torch.get_rng_state()}
    if device.type == "cuda":
        found[f"{RANDOM}{rank}/cuda"] = torch.cuda.get_rng_state(device)
    return found


def set_random_states(found: Mapping[str, Tensor]) -> None:
    for name, state in found.items():
        if name.endswith("/cuda"):
            torch.cuda.set_rng_state(state)
        else:
            torch.set_rng_state(state)
