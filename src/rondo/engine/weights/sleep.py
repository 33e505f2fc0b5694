"""Sleep mode: releases memory while the engine is idle, and takes it again.

Level 1 moves the weights to CPU memory, level 2 drops them; both drop the KV cache. The two parts can be woken one by
one, so that new weights can be written before the memory of the KV cache is allocated.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal, get_args

import torch
from torch import Tensor, nn

from rondo.base.errors import InvalidRequest, Unavailable
from rondo.engine.kv.cache import KVCache
from rondo.models import Decoder
from rondo.models.adapters.attached import adapter_of

Tag = Literal["weights", "kv_cache"]
TAGS: tuple[Tag, ...] = get_args(Tag)
Reload = Callable[[], Decoder]
"""Reads the engine's checkpoint again."""


class Sleeper:
    """Sleep state of a model and its KV cache. `reload` is set while the checkpoint holds the weights in use."""

    def __init__(self, model: Decoder, cache: KVCache, reload: Reload | None = None) -> None:
        self.model = model
        self.cache = cache
        self.reload = reload
        self.asleep: frozenset[Tag] = frozenset()
        self.level = 0
        self._device = model.device
        self._dropped: dict[str, Tensor] = {}

    def sleep(self, level: int) -> None:
        """Sleeps at this level. A deeper level than before is possible; a lighter one does not restore
        dropped weights."""
        if level == 1 and "weights" not in self.asleep:
            self._to_host()
        elif level == 2:
            self._drop()
        self.cache.release()
        self.asleep = frozenset(TAGS)
        self.level = max(self.level, level)
        if self._device.type == "cuda":
            torch.cuda.empty_cache()

    def wake(self, tags: Sequence[str] | None) -> bool:
        """Restores the parts in `tags`, all by default. Returns whether the checkpoint was read again."""
        wanted = self.asleep & check_tags(tags)
        reloaded = False
        try:
            if "kv_cache" in wanted:
                self.cache.allocate()
                self.asleep -= {"kv_cache"}
            if "weights" in wanted:
                reloaded = self._wake_weights()
        except (torch.OutOfMemoryError, MemoryError) as error:
            raise Unavailable(
                f"there is not enough free memory on {self._device} to wake up; the rest stays asleep. "
                "Free some memory, then wake the engine again.",
                code="out_of_memory",
            ) from error
        if not self.asleep:
            self.level = 0
        return reloaded

    def _wake_weights(self) -> bool:
        reloaded = bool(self._dropped) and self.reload is not None
        if self._dropped:
            put(self.model, self._read() if self.reload else self._blank())
        if self._device.type != "cpu":
            put(self.model, {n: p.data.to(self._device) for n, p in self.model.named_parameters()})
        self._dropped = {}
        self.asleep -= {"weights"}
        return reloaded

    def _read(self) -> dict[str, Tensor]:
        assert self.reload is not None
        fresh = dict(self.reload().named_parameters())
        return {name: fresh[name].data for name in self._dropped}

    def _blank(self) -> dict[str, Tensor]:
        """Uninitialized memory for a later weight update."""
        return {name: _like(was, self._device) for name, was in self._dropped.items()}

    def _to_host(self) -> None:
        if self._device.type != "cpu":
            put(self.model, {name: _pinned(p.data) for name, p in self.model.named_parameters()})

    def _drop(self) -> None:
        """Drops the checkpoint's parameters; parameters of an attached adapter are not in the checkpoint, and stay."""
        if self._dropped:
            return
        adapter = adapter_of(self.model)
        parts = () if adapter is None else adapter.parts.values()
        added = {id(parameter) for part in parts for parameter in part.parameters()}
        own = {name: p.data for name, p in self.model.named_parameters() if id(p) not in added}
        self._dropped = {name: _like(tensor, torch.device("meta")) for name, tensor in own.items()}
        put(self.model, {name: tensor.new_empty(0) for name, tensor in own.items()})


def check_level(level: int) -> None:
    if level not in (1, 2):
        raise InvalidRequest(
            f"level must be 1 (weights go to CPU memory) or 2 (weights are dropped), not {level}.",
            param="level",
        )


def check_tags(tags: Sequence[str] | None) -> frozenset[Tag]:
    if tags is None:
        return frozenset(TAGS)
    unknown = [tag for tag in tags if tag not in TAGS]
    if unknown:
        raise InvalidRequest(
            f"tags holds {unknown[0]!r}; what wakes is {' and '.join(map(repr, TAGS))}.", param="tags"
        )
    return frozenset(tag for tag in TAGS if tag in tags)


def put(model: nn.Module, tensors: dict[str, Tensor]) -> None:
    """Replaces parameters. All tensors exist before the first is replaced: when memory runs out, the model is
    unchanged."""
    for name, parameter in model.named_parameters():
        if name in tensors:
            parameter.data = tensors[name]


def _like(tensor: Tensor, device: torch.device) -> Tensor:
    return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=device)


def _pinned(tensor: Tensor) -> Tensor:
    """A copy in pinned memory, which transfers back at full bus speed."""
    return torch.empty_like(tensor, device="cpu", pin_memory=True).copy_(tensor)
