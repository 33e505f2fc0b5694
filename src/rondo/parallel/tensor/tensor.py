"""Tensor and sequence parallelism: each rank has a part of the heads, the neurons and the vocabulary, and of the tokens
between half layers.

`split` assigns the parts, for serving as well. Around each half layer the rows of all ranks are gathered, and the
summands are reduce-scattered; norms and residual sums use a rank's own tokens only. The head receives all rows that
predict, and computes this rank's part of the logits.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor, nn
from torch.distributed import ProcessGroup
from torch.distributed.device_mesh import DeviceMesh

from rondo.base.errors import ConfigError
from rondo.models.adapters.attached import CHILD
from rondo.models.architecture import Gqa
from rondo.models.attend import Attend
from rondo.models.decoder import Decoder, DecoderLayer, MissingLayer, ScoreHead
from rondo.models.parts import Experts, GqaAttention, MoeMlp, RopeTables
from rondo.ops.vocabulary.split_logprobs import split_logprobs, split_top1_hits
from rondo.parallel.collectives import copy_to, gather_equal, read_rows, scatter_rows, sum_over
from rondo.parallel.layout.split import Split, TensorSlice, split
from rondo.parallel.ranks.mesh import Mesh
from rondo.parallel.tensor.local import Read, become, nothing, read_locally, rows_of, stored
from rondo.parallel.tensor.rows import divide_rows
from rondo.parallel.tensor.shard import SplitEmbed, split_norms


def divide(model: Decoder, mesh: Mesh, *, again: bool = False) -> None:
    """Reduces each rank to its part, in place. Experts under expert parallelism are unchanged. With `again` the
    gathered rows are not saved for the backward pass but gathered once more.
    """
    if mesh.degrees.tp == 1:
        return
    if model.config.quantization is not None:
        raise ConfigError(
            "train.layout.tp: quantized weights are not divided: leave it at 1.", param="train.layout.tp"
        )
    own = split(model.config, mesh.tp_rank, mesh.degrees.tp)
    _divide_ends(model, own, mesh.tp)
    for layer in model.own_layers():
        assert isinstance(layer, DecoderLayer)
        _divide_layer(layer, model, own, mesh, again=again)
    _store(model, own, mesh.states["tp"], whole_experts=mesh.experts is not None)


def _divide_ends(model: Decoder, own: Split, group: ProcessGroup) -> None:
    if not isinstance(model.embed, MissingLayer):
        with torch.device("meta"):
            embed = SplitEmbed(own, partial(scatter_rows, group=group))
        embed.weight = model.embed.weight
        model.embed = embed
    if isinstance(model.head, ScoreHead):
        become(model.head, _ScoresOnce)
        model.head.__dict__["group"] = group
    model.head.score = partial(_score, first=own.vocabulary.start, group=group)
    model.head.hits = partial(_hits, first=own.vocabulary.start, group=group)


class _ScoresOnce(ScoreHead):
    """All ranks compute the scores; the first rank's count."""

    group: ProcessGroup

    def logprobs(
        self, x: Tensor, tokens: Tensor, temperature: float, entropy: bool = False, top1: bool = False
    ) -> Tensor:
        scores = super().logprobs(x, tokens, temperature, entropy, top1)
        return sum_over(scores if self.group.rank() == 0 else nothing(scores), self.group)


def _score(
    logits: Tensor, tokens: Tensor, temperature: float, entropy: bool, *, first: int, group: ProcessGroup
) -> Tensor:
    return split_logprobs(logits, tokens, temperature, first, lambda x: gather_equal(x[None], group), entropy)


def _hits(logits: Tensor, tokens: Tensor, *, first: int, group: ProcessGroup) -> Tensor:
    return split_top1_hits(logits, tokens, first, lambda x: gather_equal(x[None], group))


def _divide_layer(layer: DecoderLayer, model: Decoder, own: Split, mesh: Mesh, *, again: bool) -> None:
    attention, group = layer.attention, mesh.tp
    index = attention.spec.layer
    whole, part = model.config.layers[index].attention, own.config.layers[index].attention
    attention.part = part
    attention.spec = replace(attention.spec, num_heads=part.num_heads, num_kv_heads=part.num_kv_heads)
    if isinstance(attention, GqaAttention) and attention.part.qk_norm == "full":
        assert isinstance(whole, Gqa)
        split_norms(attention, whole, own.rank, own.size, partial(_sum_for_all, group=group))
    for half in _halves(layer, whole_experts=mesh.experts is not None):
        divide_rows(half, group, again=again)
    layer.__class__ = SplitLayer
    layer.__dict__["group"] = group


class SplitLayer(DecoderLayer):
    """Layer on this rank's part of a row's tokens; rows read from the last layer are gathered from all ranks."""

    group: ProcessGroup

    def forward(self, x: Tensor, ropes: RopeTables, attend: Attend, read: Tensor | None = None) -> Tensor:
        x = super().forward(x, ropes, attend)
        return x if read is None else read_rows(x, read, self.group)


def _halves(layer: DecoderLayer, *, whole_experts: bool) -> Iterator[nn.Module]:
    """Modules that return summands for all tokens. Whole experts receive a rank's own tokens only."""
    yield layer.attention
    if whole_experts and isinstance(layer.mlp, MoeMlp):
        if layer.mlp.shared is not None:
            yield layer.mlp.shared
    else:
        yield layer.mlp


def _sum_for_all(x: Tensor, *, group: ProcessGroup) -> Tensor:
    """The sum over all ranks, whose later computations differ."""
    return copy_to(sum_over(x, group), group)


def _store(model: Decoder, own: Split, over: DeviceMesh, *, whole_experts: bool) -> None:
    """Converts parameters to DTensors; a tied parameter stays tied."""
    made: dict[nn.Parameter, nn.Parameter] = {}
    for path, module in model.named_modules():
        if whole_experts and isinstance(module, Experts):
            continue
        reads = {}
        for leaf, parameter in module._parameters.items():
            if parameter is None:
                continue
            name = f"{path}.{leaf}"
            cut = _cut_of(name, own)
            dim = None if cut is None or not _is_divided(parameter, cut, own.size) else cut.dim
            if parameter not in made:
                made[parameter] = stored(parameter, over, dim)
            read = _read_of(name, cut if dim is None else None, own)
            if read is not None:
                reads[leaf] = read
        for leaf, parameter in list(module._parameters.items()):
            if parameter is not None:
                module._parameters[leaf] = made[parameter]
        if module._parameters:
            read_locally(module, over, reads)


def _cut_of(name: str, own: Split) -> TensorSlice | None:
    path, _, leaf = name.rpartition(".")
    base, _, child = path.rpartition(".")
    if child != CHILD:
        return own.cuts.get(name)
    # For a low-rank pair a [r, in] and b [r, out]: if the output is split, b is; if the input is, a is.
    cut = own.cuts.get(f"{base}.weight")
    return cut if cut is not None and (leaf, cut.dim) in (("a", 1), ("b", 0)) else None


def _is_divided(parameter: Tensor, cut: TensorSlice, size: int) -> bool:
    """Whether the parameter is sharded. False if several ranks have the same part: fewer key heads than ranks."""
    return len(cut) <= -(-parameter.shape[cut.dim] // size)


def _read_of(name: str, cut: TensorSlice | None, own: Split) -> Read | None:
    if cut is not None:
        return rows_of(cut.start, len(cut), cut.dim)
    return nothing if name in own.absent else None
