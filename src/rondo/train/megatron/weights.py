"""Mapping between the parameters of a rank's part of a model and Megatron-Core's, some of which are fused; in both
directions.

The rank's rows and columns are determined by `parallel/split`: Megatron-Core splits heads, neurons and vocabulary in
the same way.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from torch import Tensor

from rondo.models.architecture import Dense, Gqa, ModelConfig

TIED = "output_layer.weight"
"""Output matrix: in the last of several stages a copy of a tied embedding."""


@dataclass(frozen=True)
class Fused:
    """A parameter of Megatron-Core: each of `groups` has `rows[i]` rows of the native `ours[i]`, one below another,
    followed by unused `padding`.
    """

    name: str
    ours: tuple[str, ...]
    rows: tuple[int, ...]
    groups: int = 1
    padding: int = 0

    def apart(self, fused: Tensor) -> dict[str, Tensor]:
        """Native parameters, as views if they are in one group, else as copies. A scalar is copied to each of them."""
        if not fused.ndim:
            return {name: fused.clone() for name in self.ours}
        return {name: part.flatten(0, 1) for name, part in self._parts(fused)}

    def fill(self, fused: Tensor, ours: Mapping[str, Tensor]) -> None:
        """Fills the fused parameter in place; padding is set to 0."""
        if not fused.ndim:
            fused.copy_(ours[self.ours[0]])
            return
        if self.padding:
            fused.zero_()
        for name, part in self._parts(fused):
            part.copy_(_grouped(ours[name], self.groups))

    def _parts(self, fused: Tensor) -> Iterator[tuple[str, Tensor]]:
        """Views [groups, rows, ..]."""
        parts = _grouped(fused, self.groups).split_with_sizes([*self.rows, self.padding], 1)
        return zip(self.ours, parts)


def _grouped(tensor: Tensor, groups: int) -> Tensor:
    return tensor.view(groups, -1, *tensor.shape[1:])


@dataclass(frozen=True)
class PipelineStage:
    """One of `count` runs of equally many layers."""

    index: int = 0
    count: int = 1

    @property
    def first(self) -> bool:
        return self.index == 0

    @property
    def last(self) -> bool:
        return self.index == self.count - 1

    def layers(self, total: int) -> range:
        size = total // self.count
        return range(self.index * size, (self.index + 1) * size)


def table(config: ModelConfig, vocabulary: int, stage: PipelineStage | None = None) -> list[Fused]:
    """Fused parameters of a rank whose own model is `config`, with `vocabulary` rows of the embedding, including
    padding. A tied embedding is in the first and in the last stage.
    """
    stage = stage or PipelineStage()
    hidden, words, padding = config.hidden_size, config.vocab_size, vocabulary - config.vocab_size
    found: list[Fused] = []
    if stage.first:
        name = "embedding.word_embeddings.weight"
        found.append(Fused(name, ("embed.weight",), (words,), padding=padding))
    for place, i in enumerate(stage.layers(len(config.layers))):
        found += _layer(config, i, place)
    if stage.last:
        found.append(_plain("decoder.final_layernorm.weight", "head.norm.weight", hidden))
        if not config.tied or not stage.first:
            out = "embed.weight" if config.tied else "head.out.weight"
            found.append(Fused(TIED, (out,), (words,), padding=padding))
    return found


def _layer(config: ModelConfig, i: int, place: int) -> Iterator[Fused]:
    hidden, attention, mlp = config.hidden_size, config.layers[i].attention, config.layers[i].mlp
    assert isinstance(attention, Gqa)
    assert isinstance(mlp, Dense)
    ours, theirs = f"layers.{i}", f"decoder.layers.{place}"
    size, keys = attention.head_dim, attention.num_kv_heads
    rows = (attention.num_heads // keys * size, size, size)
    for leaf in ("weight", "bias") if attention.qkv_bias else ("weight",):
        names = tuple(f"{ours}.attention.{part}.{leaf}" for part in "qkv")
        yield Fused(f"{theirs}.self_attention.linear_qkv.{leaf}", names, rows, groups=keys)
    if attention.qk_norm is not None:
        for part in "qk":
            name = f"{theirs}.self_attention.{part}_layernorm.weight"
            yield _plain(name, f"{ours}.attention.{part}_norm.weight", size)
    yield _plain(f"{theirs}.self_attention.linear_proj.weight", f"{ours}.attention.o.weight", hidden)
    gate_up = (f"{ours}.mlp.gate.weight", f"{ours}.mlp.up.weight")
    yield Fused(f"{theirs}.mlp.linear_fc1.weight", gate_up, (mlp.intermediate, mlp.intermediate))
    yield _plain(f"{theirs}.mlp.linear_fc2.weight", f"{ours}.mlp.down.weight", hidden)
    yield _plain(f"{theirs}.input_layernorm.weight", f"{ours}.attention_norm.weight", hidden)
    yield _plain(f"{theirs}.pre_mlp_layernorm.weight", f"{ours}.mlp_norm.weight", hidden)


def _plain(theirs: str, ours: str, rows: int) -> Fused:
    return Fused(theirs, (ours,), (rows,))
