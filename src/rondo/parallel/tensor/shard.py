"""One rank's slice of a decoder: a smaller decoder whose half layers are summed over the ranks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from rondo.base.errors import ConfigError
from rondo.models import Decoder, ModelConfig, build
from rondo.models.architecture import Gqa
from rondo.models.decoder import DecoderLayer, Embed
from rondo.models.files.slots import Slot
from rondo.models.parts import GqaAttention, Linear, Norm
from rondo.parallel.layout.split import Split, heads_of, split
from rondo.parallel.layout.table import narrowed
from rondo.parallel.tensor.group import RankGroup


class ShardedDecoder(Decoder):
    """Decoder for inference: every rank returns the whole logits for the same tokens. Gradients do not cross ranks.

    `config` describes the whole model. Forward hooks compute the sum of each half layer, so the modules themselves are
    unchanged.
    """

    def __init__(self, config: ModelConfig, group: RankGroup) -> None:
        own = split(config, group.rank, group.size)
        super().__init__(own.config)
        self.config = config
        self.split = own
        self.embed = SplitEmbed(own, group.add)
        if not config.scores:
            self.head.out = SplitHead(config, own, group)
        for layer, whole in zip(self.layers, config.layers):
            assert isinstance(layer, DecoderLayer)
            if isinstance(layer.attention, GqaAttention) and layer.attention.part.qk_norm == "full":
                assert isinstance(whole.attention, Gqa)
                split_norms(layer.attention, whole.attention, group.rank, group.size, group.add)
            for half in (layer.attention, layer.mlp):
                half.register_forward_hook(_adds(group))
        for name in own.absent:
            _drop(self, name)
        self.requires_grad_(False)
        self.tie()

    def slots(self) -> list[Slot]:
        """Regions of a whole checkpoint for this rank."""
        whole = build(self.config)
        return narrowed(whole.slots(), dict(whole.named_parameters(remove_duplicate=False)), self.split)

    def check_whole(self) -> None:
        raise ConfigError(
            f"this is rank {self.split.rank} of {self.split.size} of a model: only a whole model can be exported. "
            "Load it without tensor_parallel.",
            param="tensor_parallel",
        )


Add = Callable[[Tensor], Tensor]
"""Reduction of the ranks' summands."""


class SplitEmbed(Embed):
    """Embedding split by vocabulary. Each token's row is on one rank; the other ranks add zeros."""

    def __init__(self, split: Split, add: Add) -> None:
        super().__init__(split.config)
        self.first = split.vocabulary.start
        self.add = add

    def forward(self, tokens: Tensor) -> Tensor:
        rows = tokens - self.first
        last = self.weight.shape[0] - 1
        elsewhere = (rows < 0) | (rows > last)
        x = super().forward(rows.clamp(0, last))
        return self.add(x.masked_fill(elsewhere[:, None], 0.0))


class SplitHead(Linear):
    """Head split by vocabulary; the logits are gathered on all ranks."""

    def __init__(self, config: ModelConfig, split: Split, group: RankGroup) -> None:
        super().__init__(config.hidden_size, len(split.vocabulary), bias=False)
        self.whole = config.vocab_size
        self.part = -(-config.vocab_size // split.size)
        self.group = group

    def forward(self, input: Tensor) -> Tensor:
        return self.group.gather(super().forward(input), self.part, self.whole)


class SplitNorm(Norm):
    """RMSNorm over an axis that is split among the ranks. `sharers` ranks have the same part, which counts once."""

    def __init__(self, norm: Norm, whole: int, sharers: int, add: Add) -> None:
        super().__init__(norm.weight.shape[0], norm.eps, norm.offset)
        self.weight = norm.weight
        self.whole = whole
        self.sharers = sharers
        self.add = add

    def forward(self, x: Tensor) -> Tensor:
        wide = x.float()
        squares = self.add(wide.square().sum(-1, keepdim=True) / self.sharers)
        wide = wide * torch.rsqrt(squares / self.whole + self.eps)
        return (wide * (self.weight.float() + self.offset)).to(x.dtype)


def split_norms(attention: GqaAttention, whole: Gqa, rank: int, size: int, add: Add) -> None:
    """Replaces norms over the rank's own heads by norms over all heads."""
    heads = heads_of(whole.num_heads, whole.num_kv_heads, rank, size)
    attention.q_norm = SplitNorm(attention.q_norm, whole.num_heads * whole.head_dim, 1, add)
    attention.k_norm = SplitNorm(attention.k_norm, whole.num_kv_heads * whole.head_dim, heads.sharers, add)


def _adds(group: RankGroup) -> Any:
    def add(module: nn.Module, inputs: Sequence[Any], output: Tensor) -> Tensor:
        return group.add(output)

    return add


def _drop(model: nn.Module, name: str) -> None:
    """Removes a parameter, if the model has it."""
    path, _, leaf = name.rpartition(".")
    try:
        owner = model.get_submodule(path)
    except AttributeError:
        return
    if leaf in owner._parameters:
        setattr(owner, leaf, None)
