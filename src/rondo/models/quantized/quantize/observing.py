"""The quantizable matrices of a layer and statistics of their inputs, for GPTQ and AWQ."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from rondo.models.parts import Experts, Linear
from rondo.ops import gated, linear

Key = tuple[str, int | None]
"""A matrix of a layer: the name of its parameter, and the index of its expert, if any."""


def matrices(layer: nn.Module, prefix: str) -> dict[Key, Tensor]:
    """The weights [N, K] of a layer to quantize, as views."""
    found: dict[Key, Tensor] = {}
    for path, module in layer.named_modules(prefix=prefix):
        if isinstance(module, Linear):
            found[f"{path}.weight", None] = module.weight.detach()
        elif isinstance(module, Experts):
            for name in ("gate", "up", "down"):
                stacked = getattr(module, name).detach()
                found |= {(f"{path}.{name}", expert): own for expert, own in enumerate(stacked)}
    return found


class InputStatistics:
    """Sums over rows x [.., K]: outer products [K, K] and magnitudes [K]."""

    def __init__(self, columns: int) -> None:
        self.products = torch.zeros(columns, columns)
        self.magnitudes = torch.zeros(columns)
        self.count = 0
        self.last: Tensor | None = None

    def add(self, x: Tensor) -> None:
        """Adds rows. The same rows may be the input of several matrices, and count once."""
        if x is self.last:
            return
        wide = x.detach().float()
        self.products.addmm_(wide.T, wide)
        self.magnitudes += wide.abs().sum(0)
        self.count += len(wide)
        self.last = x

    def divide(self, factors: Tensor) -> None:
        """Updates the statistics after the inputs were divided by `factors`."""
        self.products /= factors[:, None] * factors
        self.magnitudes /= factors


class Observed:
    """Statistics by matrix. Matrices with the same input rows share them."""

    def __init__(self) -> None:
        self.inputs: dict[Key, InputStatistics] = {}

    def add(self, key: Key, x: Tensor) -> None:
        if key not in self.inputs:
            same = next((inputs for inputs in self.inputs.values() if inputs.last is x), None)
            self.inputs[key] = same or InputStatistics(x.shape[-1])
        self.inputs[key].add(x)

    def forget_rows(self) -> None:
        for inputs in self.inputs.values():
            inputs.last = None


@contextmanager
def observing(layer: nn.Module, prefix: str) -> Iterator[Observed]:
    """Within the block, forward passes of the layer are added to the statistics."""
    observed = Observed()
    handles = []
    for path, module in layer.named_modules(prefix=prefix):
        if isinstance(module, Linear):
            handles.append(module.register_forward_pre_hook(_of_linear(observed, path)))
        elif isinstance(module, Experts):
            handles.append(module.register_forward_pre_hook(_of_experts(observed, path)))
    try:
        yield observed
    finally:
        for handle in handles:
            handle.remove()
        observed.forget_rows()


def _of_linear(observed: Observed, path: str) -> Callable[..., None]:
    def hook(module: nn.Module, args: tuple[Any, ...]) -> None:
        observed.add((f"{path}.weight", None), args[0])

    return hook


def _of_experts(observed: Observed, path: str) -> Callable[..., None]:
    """Hook that adds to each expert the rows routed to it."""

    def hook(module: nn.Module, args: tuple[Any, ...]) -> None:
        assert isinstance(module, Experts)
        x, _, chosen = args
        for expert in range(len(module.gate)):
            rows = x[(chosen == expert).any(-1)]
            for name in ("gate", "up"):
                observed.add((f"{path}.{name}", expert), rows)
            gate, up = (linear(rows, getattr(module, name)[expert]) for name in ("gate", "up"))
            observed.add((f"{path}.down", expert), gated(module.activation, gate, up))

    return hook
