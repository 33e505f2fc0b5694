"""A small model's layers as one compiled call, fed tokens in every way that an engine may cut them."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from rondo import models
from rondo.engine.kv.cache import KVCache
from rondo.engine.runner.compiled import CompiledDecoder, CompiledStep
from rondo.models import Decoder, Packed
from rondo.ops.dispatch import use_reference
from rondo.ops.native.decoder.layers import TokenRows
from support.threads import threads
from support.tiny import tiny_config

SIZE, BLOCKS = 4, 64
LENGTHS = (13, 9, 40, 1)
WAYS = {
    "whole": [(13, 9, 40, 1)],
    "in chunks": [(6, 0, 17, 0), (1, 4, 7, 1), (5, 1, 8, 0), (1, 4, 8, 0)],
    "one by one": [tuple(int(at < n) for n in LENGTHS) for at in range(40)],
    "one after another": [(13, 0, 0, 0), (0, 9, 0, 0), (0, 0, 40, 0), (0, 0, 0, 1)],
}


def model_of(**changes: Any) -> Decoder:
    shape = {"hidden_size": 64, "intermediate_size": 80, "head_dim": 16, "vocab_size": 99} | changes
    return models.new(tiny_config(**shape), seed=3).requires_grad_(False)


class Feeder:
    """Four sequences and where their blocks are; feeds the next tokens of each, in a step for each tuple of `way`."""

    def __init__(self, model: Decoder, kept: torch.dtype | None = None) -> None:
        self.cache = KVCache(model.attention_specs(), [BLOCKS], SIZE, kept or model.dtype, model.device)
        compiled = CompiledDecoder.of(model, self.cache)
        assert compiled is not None
        self.compiled = compiled
        generator = torch.Generator().manual_seed(1)
        self.tokens = [torch.randint(0, 99, (n,), generator=generator) for n in LENGTHS]
        self.tables = torch.randperm(BLOCKS, generator=generator).view(len(LENGTHS), -1)

    def feed(self, way: list[tuple[int, ...]]) -> list[Tensor]:
        done = [0] * len(LENGTHS)
        got: list[list[Tensor]] = [[] for _ in LENGTHS]
        for counts in way:
            owners = torch.tensor([i for i, n in enumerate(counts) for _ in range(n)])
            positions = torch.cat([torch.arange(done[i], done[i] + n) for i, n in enumerate(counts)])
            tokens = torch.cat(
                [x[done[i] : done[i] + n] for i, (x, n) in enumerate(zip(self.tokens, counts, strict=True))]
            )
            slots = self.tables[owners, positions // SIZE] * SIZE + positions % SIZE
            longest = int(positions.max()) + 1
            related = sum(counts) > sum(n > 0 for n in counts)
            # A whole sequence's from its first token on: frequencies by the length so far depend on how it is cut.
            lengths = torch.tensor(LENGTHS)[owners]
            rows = TokenRows(
                tokens,
                positions,
                longest,
                self.tables[None, :, : -(-longest // SIZE)].contiguous(),
                owners,
                positions + 1,
                slots[None],
                longest,
                related,
                lengths,
            )
            x = self.compiled.trunk(CompiledStep(rows), None)
            for i, n in enumerate(counts):
                got[i].append(x[:n])
                x = x[n:]
                done[i] += n
        return [torch.cat(rows) for rows in got]

    def want(self) -> list[Tensor]:
        packed = Packed([0, *torch.tensor(LENGTHS).cumsum(0).tolist()])
        with use_reference():
            x = self.compiled.model.trunk(torch.cat(self.tokens), packed.positions, packed)
        return list(x.split(LENGTHS))

    def same_in_every_way(self, *counts: int) -> list[Tensor]:
        """The rows, whose bits depend neither on the way nor on how many threads share them."""
        first: list[Tensor] = []
        for count in counts:
            for name, way in WAYS.items():
                with threads(count), torch.inference_mode():
                    got = self.feed(way)
                first = first or got
                for ours, before in zip(got, first, strict=True):
                    assert torch.equal(ours, before), (name, count)
        return first


def check_bf16(got: list[Tensor], want: list[Tensor]) -> None:
    """Rounded where the model rounds, so that few of their last bits are others."""
    for ours, theirs in zip(got, want, strict=True):
        assert ours.dtype == torch.bfloat16
        difference = (ours.float() - theirs.float()).abs()
        assert difference.max() <= 0.06 * theirs.float().abs().max()
        assert difference.mean() <= 0.01 * theirs.float().abs().max()
