"""A learner that frees its device for a while, and later continues with bitwise equal state."""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from rondo.base.errors import ConfigError, Conflict
from rondo.base.storage.paths import path_of
from rondo.parallel.tensor.own_part import local_of, with_local
from rondo.train.offload.disk_tensors import DiskTensorPool

if TYPE_CHECKING:
    from rondo.train.learner.learner import Learner

HOST = "host"


class OffloadedState:
    """State of an offloaded learner. The constructor offloads it, and `back` restores it."""

    def __init__(self, learner: Learner, to: str, weights: bool) -> None:
        """`to` is "host", for a GPU's learner, or a folder. Without `weights` only the optimizer's state and averages
        are offloaded.
        """
        _check(learner, to, weights)
        self._device = learner.model.device
        self._shelf = None if to == HOST else DiskTensorPool(path_of(to, "to"))
        self._places = [*_states(learner), *(_weights(learner) if weights else ())]
        for place in self._places:
            place.put(self._placed(local_of(place.get())))
        self._give_back()

    def back(self) -> None:
        for place in self._places:
            waiting = local_of(place.get())
            place.put(waiting.to(self._device, copy=True))

    def _placed(self, x: Tensor) -> Tensor:
        if self._shelf is None:
            return torch.empty_like(x, device="cpu", pin_memory=True).copy_(x)
        placed = self._shelf.place(x)
        self._shelf.let_go([placed])
        return placed

    def _give_back(self) -> None:
        if self._device.type == "cuda":
            torch.cuda.empty_cache()


@dataclass(frozen=True)
class _Entry:
    """A tensor in a dict."""

    table: MutableMapping[str, Any]
    key: str

    def get(self) -> Tensor:
        found: Tensor = self.table[self.key]
        return found

    def put(self, local: Tensor) -> None:
        self.table[self.key] = with_local(self.get(), local)


@dataclass(frozen=True)
class _Weight:
    parameter: nn.Parameter

    def get(self) -> Tensor:
        return self.parameter.detach()

    def put(self, local: Tensor) -> None:
        self.parameter.data = local


def _states(learner: Learner) -> Iterator[_Entry]:
    for state in learner.optimizer.state.values():
        for key, x in state.items():
            if isinstance(x, Tensor) and x.ndim:
                yield _Entry(state, key)
    if learner.ema is not None:
        for name in learner.ema.tensors:
            yield _Entry(learner.ema.tensors, name)


def _weights(learner: Learner) -> Iterator[_Weight]:
    """Each parameter once: a working copy may share some with its model."""
    models = {id(model): model for model in (learner.model, learner.computing)}
    found = {id(p): p for model in models.values() for p in model.parameters()}
    return map(_Weight, found.values())


def _check(learner: Learner, to: str, weights: bool) -> None:
    if to == HOST and learner.model.device.type == "cpu":
        raise ConfigError("offload: this learner is in host memory already: name a folder.", param="to")
    if weights and learner.mesh is not None:
        raise ConfigError(
            "offload: sharded weights cannot be offloaded: offload(to, weights=False).", param="weights"
        )
    if learner.offloaded is not None:
        raise ConfigError("offload: train.offload has the states elsewhere already.", param="to")
    if any(p.grad is not None for p in learner.model.parameters()):
        raise Conflict("offload: there are gradients: call optim_step first.")
