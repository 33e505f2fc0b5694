"""Activation checkpointing: the activations that a layer saves for its backward pass, and the ones that it
recomputes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint, noop_context_fn

from rondo.models.architecture import Mla
from rondo.models.decoder import Decoder, DecoderLayer
from rondo.models.parts import MoeMlp
from rondo.ops.kept import SelectiveCheckpoint
from rondo.parallel.config import Checkpointing, MemoryConfig

Contexts = Callable[[], tuple[AbstractContextManager[Any], AbstractContextManager[Any]]]


def keep_less(model: Decoder, memory: MemoryConfig) -> None:
    """Applies the config's memory settings for activations and logits, in place."""
    recompute(model.own_layers(), memory.checkpointing)
    model.head.chunked = memory.logits == "chunked"


def recompute(layers: Iterable[nn.Module], how: Checkpointing) -> None:
    """Sets activation checkpointing in place. Full saves a layer's input alone; selective also saves the results of
    attention and of every second product.
    """
    for layer in layers:
        layer.__dict__.pop("forward", None)
        if how == "none":
            continue
        assert isinstance(layer, DecoderLayer)
        contexts = noop_context_fn if how == "full" else partial(_keeping, products_kept(layer))
        layer.forward = partial(_checkpointed, layer.forward, contexts)  # type: ignore[method-assign]


def _checkpointed(forward: Callable[..., Any], contexts: Contexts, *args: Any) -> Any:
    if not torch.is_grad_enabled():
        return forward(*args)
    return checkpoint(forward, *args, use_reentrant=False, preserve_rng_state=False, context_fn=contexts)


def _keeping(
    wanted: Callable[[int], bool],
) -> tuple[AbstractContextManager[Any], AbstractContextManager[Any]]:
    keeper = SelectiveCheckpoint(wanted)
    return keeper.run(again=False), _Again(keeper)


class _Again:
    """Recomputation context that can be entered twice: some schedules compute gradients of inputs first and of weights
    later.
    """

    def __init__(self, keeper: SelectiveCheckpoint) -> None:
        self._keeper = keeper

    def __enter__(self) -> None:
        self._run = self._keeper.run(again=True)
        self._run.__enter__()

    def __exit__(self, *raised: Any) -> None:
        self._run.__exit__(*raised)


def products_kept(layer: DecoderLayer) -> Callable[[int], bool]:
    """Selects the matrix products of a layer to save, by their index in order of execution. Products that only expand
    the result of another product, and products without use in the recomputation, are not saved.
    """
    sparse = isinstance(layer.mlp, MoeMlp)
    if isinstance(layer.attention.part, Mla):
        queries = (True,) if layer.attention.part.q_rank is None else (True, False)
        first = (*queries, True, False, True)  # down to the latents, not up; out
    else:
        first = (True, sparse, True, True)  # q, k, v, out
    if sparse:
        first += (True,)  # router
    # gate, up, down of each expert, so that an expert's inputs need not be multiplied twice
    turn = (True, sparse, False)

    def wanted(number: int) -> bool:
        return first[number] if number < len(first) else turn[(number - len(first)) % len(turn)]

    return wanted
