"""Expert parallelism: each rank holds some of the experts; tokens are dispatched to the ranks of their experts and
combined afterwards.

A rank sends each of its tokens once per chosen expert, sorted by expert, and receives the tokens routed to its own
experts: no padding, no capacity limit and no dropped tokens, however uneven the routing. The experts' states are
sharded further among the ranks that hold the same experts, by FSDP over a separate mesh.
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
    """Reduces each rank to its own experts, in place."""
    if mesh.experts is None:
        return
    over = mesh.experts["ep"]
    for module in decoder.modules():
        if isinstance(module, Experts):
            for name, parameter in list(module._parameters.items()):
                if parameter is not None:
                    # Every rank has loaded the same weights: no communication is needed.
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
    """Routing plan of a rank's tokens. `order` sorts the choices by expert, `rows` are the tokens of the sorted
    choices; `sent` and `received` are token counts per rank; `experts` [N] is the local expert of each received token.
    """

    order: Tensor
    rows: Tensor
    sent: list[int]
    received: list[int]
    experts: Tensor

    @classmethod
    def plan(cls, chosen: Tensor, own: int, group: ProcessGroup) -> Trip:
        """Plans the routing for `chosen` [T, k], expert indices among all experts; a rank holds `own` of them."""
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
    """Applies expert `experts[i]` to row i. Without rows the experts still take part in the graph: all ranks reduce the
    same gradients.
    """
    if len(x):
        return grouped_experts(x, x.new_ones(len(x), 1), experts[:, None], parts, activation)
    tensors = (parts.gate, parts.up, parts.down, parts.gate_bias, parts.up_bias, parts.down_bias)
    return x + sum(each.flatten()[0] * 0.0 for each in tensors if isinstance(each, Tensor))
