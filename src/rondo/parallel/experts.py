"""Expert parallelism: each rank holds some of the experts, and tokens go to where their experts are and back.

A rank sends each of its tokens once for each expert chosen, sorted by expert, and receives what others chose of its
own: no padding, no capacity, nothing dropped, however uneven the choice. The experts' states are divided further among
the ranks that hold the same ones, by FSDP over a mesh of their own.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.distributed.tensor import Shard, distribute_tensor

from rondo.models.decoder import Decoder
from rondo.models.parts import Experts, take
from rondo.ops import ExpertWeights, grouped_experts
from rondo.parallel.collectives import all_to_all, exchanged
from rondo.parallel.tensor.own_part import local_of

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

    from rondo.parallel.ranks.mesh import Mesh


def spread(decoder: Decoder, mesh: Mesh) -> None:
    """Leaves each rank its own experts, in place."""
    if mesh.experts is None:
        return
    over = mesh.experts["ep"]
    for module in decoder.modules():
        if isinstance(module, Experts):
            for name, parameter in list(module._parameters.items()):
                if parameter is not None:
                    # Every rank has read the same weights: nothing has to be sent.
                    own = distribute_tensor(parameter.detach(), over, [Shard(0)], src_data_rank=None)
                    module._parameters[name] = nn.Parameter(own, parameter.requires_grad)
            module.__class__ = SpreadExperts
            module.__dict__["group"] = over.get_group()


class SpreadExperts(Experts):
    group: ProcessGroup

    def forward(self, x: Tensor, weights: Tensor, experts: Tensor) -> Tensor:
        gate, up, down = local_of(self.gate), local_of(self.up), local_of(self.down)
        biases = (
            None if each is None else local_of(each)
            for each in (self.gate_bias, self.up_bias, self.down_bias)
        )
        parts = ExpertWeights(gate, up, down, *biases)
        trip = Trip.plan(experts, len(gate), self.group)
        arrived = all_to_all(take(x, trip.rows), self.group, trip.received, trip.sent)
        made = _each(arrived, trip.experts, parts, self.activation)
        back = all_to_all(made, self.group, trip.sent, trip.received)
        scaled = weights.flatten()[trip.order, None].to(x.dtype)
        return torch.zeros_like(x).index_add(0, trip.rows, back * scaled)


@dataclass(frozen=True)
class Trip:
    """Where the tokens of a rank go. `order` are the choices sorted by expert, `rows` the tokens they are of; `sent`
    and `received` count them by rank; `experts` [N] says of each that arrives which of this rank's is meant."""

    order: Tensor
    rows: Tensor
    sent: list[int]
    received: list[int]
    experts: Tensor

    @classmethod
    def plan(cls, chosen: Tensor, own: int, group: ProcessGroup) -> Trip:
        """`chosen` [T, k] of all experts; a rank has `own` of them."""
        ranks = group.size()
        flat = chosen.flatten()
        order = flat.argsort(stable=True)
        counts = torch.bincount(flat, minlength=ranks * own)
        arriving = exchanged(counts, group, [own] * ranks, [own] * ranks).view(ranks, own)
        experts = torch.arange(own, device=chosen.device).repeat(ranks).repeat_interleave(arriving.flatten())
        return cls(
            order,
            order // chosen.shape[1],
            counts.view(ranks, own).sum(1).tolist(),
            arriving.sum(1).tolist(),
            experts,
        )


def _each(x: Tensor, experts: Tensor, parts: ExpertWeights, activation: str) -> Tensor:
    """Row i through expert i. Without rows the experts still take part: all ranks reduce the same gradients."""
    if len(x):
        return grouped_experts(x, x.new_ones(len(x), 1), experts[:, None], parts, activation)
    tensors = (parts.gate, parts.up, parts.down, parts.gate_bias, parts.up_bias, parts.down_bias)
    return x + sum(each.flatten()[0] * 0.0 for each in tensors if isinstance(each, Tensor))
