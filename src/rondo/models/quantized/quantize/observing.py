"""What the matrices of a layer multiply, and what they are fed: what GPTQ and AWQ need to know."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from rondo.models.parts import Experts, Linear
from rondo.ops import gated, linear

Key = tuple[str, int | None]
"""A matrix of a layer: the name of its parameter, and which expert's it is."""


def matrices(layer: nn.Module, prefix: str) -> dict[Key, Tensor]:
    """The weights [N, K] of a layer that are quantized, as they lie."""
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
    """Rows x [.., K], added up: products with one another [K, K], and magnitudes [K]."""

    def __init__(self, columns: int) -> None:
        self.products = torch.zeros(columns, columns)
        self.magnitudes = torch.zeros(columns)
        self.count = 0
        self.last: Tensor | None = None

    def add(self, x: Tensor) -> None:
        """The same rows may go to several matrices, and count once."""
        if x is self.last:
            return
        wide = x.detach().float()
        self.products.addmm_(wide.T, wide)
        self.magnitudes += wide.abs().sum(0)
        self.count += len(wide)
        self.last = x

    def divide(self, factors: Tensor) -> None:
        """The rows have become smaller by so much."""
        self.products /= factors[:, None] * factors
        self.magnitudes /= factors


class Observed:
    """Matrices that are fed the same rows share their inputs."""

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
    """Within the block, what goes through the layer is added up."""
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
    """Each expert sees the rows that were sent to it."""

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
