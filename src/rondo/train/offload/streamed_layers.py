"""Layers with weights on disk: each is read while the previous one computes, and freed after use."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from rondo.train.offload.disk_tensors import DiskTensorPool


class Streamed:
    def __init__(self, layers: Sequence[nn.Module], shelf: DiskTensorPool) -> None:
        self._weights = [list(layer.parameters()) for layer in layers]
        self._shelf = shelf
        self._thread = ThreadPoolExecutor(1, "layers")
        self._coming: dict[int, Future[None]] = {}
        for i, layer in enumerate(layers):
            for weight in self._weights[i]:
                if not shelf.holds(weight.detach()):
                    weight.data = shelf.place(weight.detach())
            layer.register_forward_pre_hook(partial(self._begins, i))
            layer.register_forward_hook(partial(self._ends, i))

    def _begins(self, i: int, *rest: object) -> None:
        self._arrives(i)
        self._ask(i + 1)

    def _ends(self, i: int, layer: object, inputs: object, output: Tensor) -> None:
        self._go(i)
        if torch.is_grad_enabled() and output.requires_grad:
            output.register_hook(partial(self._goes_back, i))  # type: ignore[no-untyped-call]

    def _goes_back(self, i: int, gradient: Tensor) -> None:
        self._go(i + 1)
        self._arrives(i)
        self._ask(i - 1)

    def _ask(self, i: int) -> None:
        if 0 <= i < len(self._weights) and i not in self._coming:
            self._coming[i] = self._thread.submit(self._shelf.bring, self._tensors(i))

    def _arrives(self, i: int) -> None:
        self._ask(i)
        self._coming.pop(i).result()

    def _go(self, i: int) -> None:
        if 0 <= i < len(self._weights):
            self._thread.submit(self._shelf.let_go, self._tensors(i))

    def _tensors(self, i: int) -> list[Any]:
        return [weight.detach() for weight in self._weights[i]]
