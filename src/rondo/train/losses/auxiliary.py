"""The load-balancing loss of softmax routers (Switch Transformers; transformers' `load_balancing_loss_func`).

For N router decisions of a row over E experts it is E * sum_e (C_e / N) * (S_e / N): C_e counts the choices of expert
e, S_e sums its probabilities, over all layers and the row's own tokens. A row is a microbatch, so the loss depends
neither on the number of ranks nor on gradient accumulation; ranks that share a row's tokens add up their parts. Each
stage of a pipeline balances its own layers, weighted by their number.

C_e has no gradient, so the gradient of the logits is determined once a row's forward pass is complete: it is added in
the backward pass, and the values of the forward pass are bitwise unchanged.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from rondo.base.errors import ConfigError
from rondo.models.architecture import ModelConfig, Moe
from rondo.models.decoder import Decoder
from rondo.models.parts import ExpertRouter
from rondo.parallel.pipeline.stage import row_in_passing
from rondo.train.optim.balance import Balance

if TYPE_CHECKING:
    from rondo.parallel.ranks.mesh import Mesh

FAMILIES = ("mixtral", "qwen3_moe")
"""Model types trained with this loss: their config holds the coefficient."""
COEFFICIENT = 0.001
"""Default coefficient if a config has none, as in transformers."""


def coefficient_of(model: ModelConfig, given: float | None) -> float:
    hf = model.hf or {}
    sparse = [layer.mlp for layer in model.layers if isinstance(layer.mlp, Moe)]
    if given is None:
        known = hf.get("model_type") in FAMILIES and bool(sparse)
        return float(hf.get("router_aux_loss_coef", COEFFICIENT)) if known else 0.0
    if given and not any(mlp.router.score != "sigmoid" and not mlp.correction for mlp in sparse):
        raise ConfigError(
            f"router_aux_loss is {given}, but the model has no softmax routers: leave it out.",
            param="train.router_aux_loss",
        )
    return given


class ExpertUse:
    """Sums over a row's router decisions on this rank: [2, E] choices and probabilities, and their number.

    Not a dataclass: FSDP casts the tensors of dataclasses among a module's inputs, and would pass on a copy.
    """

    def __init__(self, weight: float, experts: int, device: torch.device) -> None:
        self.weight = weight
        """Share of the row's loss in the step's loss."""
        self.sums = torch.zeros(2, experts, device=device, dtype=torch.float32)
        self.decisions = torch.zeros((), device=device, dtype=torch.float32)
        self.complete = False

    def add(self, chosen: Tensor, probabilities: Tensor, mask: Tensor) -> None:
        ones = mask[:, None].expand_as(chosen).flatten()
        self.sums[0].index_add_(0, chosen.flatten(), ones)
        self.sums[1] += (probabilities * mask[:, None]).sum(0)
        self.decisions += mask.sum()


class Auxiliary:
    def __init__(self, model: Decoder, coefficient: float, balance: Balance, mesh: Mesh | None) -> None:
        self._coefficient, self._balance, self._mesh = coefficient, balance, mesh
        self._device = model.device if mesh is None else mesh.device
        routers = [
            each for each in model.modules() if isinstance(each, ExpertRouter) and each.correction is None
        ]
        for router in routers:
            router.watch = partial(self._attach, router)
        sparse = [layer.mlp for layer in model.config.layers if isinstance(layer.mlp, Moe)]
        self._experts = sparse[0].router.num_experts
        self._share = len(routers) / len(sparse)
        """This stage's share of the model's layers with routers."""

    def use(self, weight: float) -> ExpertUse:
        """Accumulator for a row whose loss is the share `weight` of the step's loss."""
        return ExpertUse(weight, self._experts, self._device)

    def value(self, use: ExpertUse) -> Tensor:
        """Auxiliary loss of a row without the coefficient; for a pipeline stage, its share of the model's loss."""
        self._complete(use)
        decisions = use.decisions.clamp(min=1)
        return self._share * self._experts * (use.sums[0] * use.sums[1]).sum() / decisions**2

    def slope(self, use: ExpertUse) -> Tensor:
        """[E]: derivative of the step's loss with respect to a decision's probability of each expert."""
        self._complete(use)
        decisions = use.decisions.clamp(min=1)
        scale = self._coefficient * use.weight * self._share * self._experts / self._copies
        return scale * use.sums[0] / decisions**2

    @property
    def _copies(self) -> int:
        """Number of ranks that repeat each decision and whose gradients are summed: tp, unless experts are
        distributed.
        """
        return 1 if self._mesh is None or self._mesh.experts is not None else self._mesh.degrees.tp

    def _complete(self, use: ExpertUse) -> None:
        """Sums over the ranks that share the row's tokens."""
        if use.complete or self._mesh is None:
            return
        use.complete = True
        degrees, both = self._mesh.degrees, torch.cat([use.sums.flatten(), use.decisions[None]])
        if degrees.cp > 1:
            torch.distributed.all_reduce(both, group=self._mesh.cp)
        if degrees.tp > 1 and self._mesh.experts is not None:
            torch.distributed.all_reduce(both, group=self._mesh.tp)
        use.sums, use.decisions = both[:-1].view_as(use.sums), both[-1]

    def _attach(self, router: ExpertRouter, logits: Tensor) -> Tensor:
        if not torch.is_grad_enabled():
            return logits
        row = row_in_passing()
        use = None if row is None else row.experts
        if use is None:  # a recomputed layer has been counted
            return _attached(logits, self, None, None)
        with torch.no_grad():
            mask = self._balance.own_tokens(router, logits).float()
            probabilities = logits.float().softmax(-1)
            use.add(probabilities.topk(router.spec.top_k, dim=-1).indices, probabilities, mask)
        return _attached(logits, self, use, mask)


class _Attached(torch.autograd.Function):
    """Identity of the logits, whose backward pass adds the auxiliary loss's gradient."""

    @staticmethod
    def forward(
        ctx: Any, logits: Tensor, auxiliary: Auxiliary, use: ExpertUse | None, mask: Tensor | None
    ) -> Tensor:
        ctx.save_for_backward(logits)
        ctx.given = auxiliary, use, mask
        return logits.view_as(logits)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        (logits,) = ctx.saved_tensors
        auxiliary, use, mask = ctx.given
        if use is None or not use.weight:
            return gradient, None, None, None
        probabilities = logits.float().softmax(-1)
        slope = auxiliary.slope(use) * mask[:, None]
        own = probabilities * (slope - (slope * probabilities).sum(-1, keepdim=True))
        return gradient + own.to(gradient.dtype), None, None, None


def _attached(logits: Tensor, auxiliary: Auxiliary, use: ExpertUse | None, mask: Tensor | None) -> Tensor:
    found: Tensor = _Attached.apply(logits, auxiliary, use, mask)  # type: ignore[no-untyped-call]
    return found
