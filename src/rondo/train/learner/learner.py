"""The learner: gradients of any loss over packed rows, and the optimizer step, independent of the algorithm."""

from __future__ import annotations

import math
from collections import ChainMap
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from rondo import models
from rondo.base.errors import Conflict, ModelError
from rondo.data.batching.packing import PackedRow
from rondo.models.adapters.attached import adapter_of
from rondo.models.decoder import Decoder
from rondo.models.files.mapping import to_hf
from rondo.train.checkpoints.states import States, differences, random_states, set_random_states
from rondo.train.config import OptimConfig
from rondo.train.evaluation.evaluator import Evaluator, LossSums, Metrics
from rondo.train.learner.gathering import gathered
from rondo.train.learner.memory import keep_freed_memory
from rondo.train.learner.passes import Passes
from rondo.train.losses.auxiliary import Auxiliary, coefficient_of
from rondo.train.losses.sums import Loss
from rondo.train.offload.offloaded_state import OffloadedState
from rondo.train.offload.optimizer_state import offloaded
from rondo.train.optim.balance import Balance
from rondo.train.optim.ema import Ema
from rondo.train.optim.loss_scale import LossScale
from rondo.train.optim.optimizer import clip_gradients, make_optimizer

if TYPE_CHECKING:
    from rondo.parallel.ranks.mesh import Mesh

__all__ = ["Learner", "Metrics"]


class Learner(Evaluator):
    def __init__(self, model: Decoder, config: OptimConfig, mesh: Mesh | None = None) -> None:
        if model.config.quantization is not None and adapter_of(model) is None:
            raise ModelError(
                f"the model's weights are quantized ({model.config.quantization.method}), and cannot be trained: "
                "train an adapter over them, or the checkpoint that is not quantized",
                param="model",
            )
        super().__init__(model, mesh, config)
        self.config = config
        self.step = 0
        self.prefix = ""
        """Prefix of the learner's tensor names in a checkpoint, for a job's second learner. The states of random
        generators are stored by the first one.
        """
        if model.device.type == "cpu" and config.offload == "none":
            keep_freed_memory()
        self.scale = LossScale() if config.precision == "float16" else None
        self.optimizer = make_optimizer(self.trained, config)
        self.balance = Balance(self.computing, config.balance, mesh)
        coefficient = coefficient_of(model.config, config.router_aux_loss)
        if coefficient and isinstance(self.passes, Passes):
            self.passes.auxiliary = Auxiliary(self.computing, coefficient, self.balance, mesh)
        self.ema = Ema(self.trained, config.ema) if config.ema else None
        self.offloaded = offloaded(self)
        self._away: OffloadedState | None = None

    @property
    def trained(self) -> nn.Module:
        """Module whose parameters are trained."""
        return self.model

    def forward_backward(
        self, batch: Sequence[PackedRow], loss: Loss, *, temperature: float = 1.0, valid: int | None = None
    ) -> Metrics:
        """Adds the gradient of the batch's mean loss. `batch` are the rows of this rank; `valid` is the divisor, in the
        loss's units: needed if the batch is part of a larger one.
        """
        self._must_be_here()
        own = self.count(batch, loss)
        if valid is None:
            (valid,) = self.totals(own)
        scale = 1.0 if self.scale is None else self.scale.now
        tally = LossSums()
        self.passes.forward_backward(batch, loss, valid / scale, temperature, tally.add)
        return self.metrics(own, valid, tally)

    def optim_step(
        self, lr: float | None = None, accept: Callable[[float], bool] = lambda norm: True
    ) -> Metrics:
        """One step with the gradients accumulated since the last one, which it clears. `accept` is called with their
        norm: if it returns False, there is no update.
        """
        self._must_be_here()
        lr = self.config.lr if lr is None else lr
        if self.scale is not None:
            self.scale.take_out(p.grad for p in self.model.parameters() if p.grad is not None)
        norm = self._clip()
        metrics = {"grad_norm": norm, "lr": lr}
        if self.scale is not None:
            self.scale.learn(math.isfinite(norm))
            metrics |= self.scale.metrics
        # Overflow due to the loss scale, as long as there is a smaller scale to try.
        scaled_away = self.scale is not None and not math.isfinite(norm) and self.scale.now > 1.0
        learned = not scaled_away and accept(norm) and (self.scale is None or math.isfinite(norm))
        if learned:
            self._update(lr)
        self.optimizer.zero_grad(set_to_none=True)
        self.step += 1
        return metrics | self.balance.step(correct=learned and adapter_of(self.model) is None)

    def _clip(self) -> float:
        return clip_gradients(
            self.model.parameters(), self.config.clip, self.mesh, self.passes.counted_elsewhere
        )

    def _update(self, lr: float) -> None:
        for group in self.optimizer.param_groups:
            group["lr"] = lr
        if self.offloaded is not None:
            self.offloaded.step()
        else:
            self.optimizer.step()
            self._refresh()
        if self.ema is not None:
            self.ema.step()

    def _refresh(self) -> None:
        if self.working is not None:
            self.working.refresh()

    def offload(self, to: str, *, weights: bool = True) -> None:
        """Frees the device until `onload`: moves the state to "host", for a GPU's learner, or to a folder. If another
        component, such as an engine, uses the weights, they must stay: `weights=False`.
        """
        self._must_be_here()
        self._away = OffloadedState(self, to, weights)

    def onload(self) -> None:
        if self._away is not None:
            self._away.back()
            self._away = None

    def _must_be_here(self) -> None:
        if self._away is not None:
            raise Conflict("the learner is offloaded: call onload first")

    def shards(self) -> Iterator[tuple[str, Tensor]]:
        """Pairs of Hugging Face name and tensor: views of the whole weights in the compute type."""
        return to_hf(self.computing)

    def gathered(self, dtype: torch.dtype) -> Iterator[tuple[str, Tensor]]:
        """Native names and whole parameters that training changes, one at a time, in `dtype`; all ranks must iterate to
        the end.
        """
        return gathered(self.model, self.mesh, dtype)

    @contextmanager
    def as_left(self) -> Iterator[None]:
        """Context in which the model has the weights that the job exports."""
        if self.ema is None or self.config.export == "last":
            yield
            return
        with self.ema.in_place():
            self._refresh()
            yield
        self._refresh()

    def whole(self) -> Decoder:
        """The model with all its weights, for export."""
        return self.model

    def export_hf(self, folder: Path) -> None:
        models.save(self.whole(), folder)

    def states(self) -> dict[str, Tensor]:
        """All tensors of a checkpoint, with the same names in every layout: this rank's part."""
        own = {self.prefix + name: x for name, x in self._own.tensors().items()}
        return own if self.prefix else own | random_states(self._rank, self.model.device)

    def save(self, folder: str | Path) -> None:
        from rondo.train.checkpoints import dcp

        dcp.write(dcp.copies_of(self.states()), str(folder), self._group)

    def load(self, folder: str | Path, step: int) -> None:
        """Loads a checkpoint of any number of ranks in place: shared tensors stay shared."""
        from rondo.train.checkpoints import dcp

        reader = dcp.Reader(str(folder))
        stored = {
            name.removeprefix(self.prefix): what
            for name, what in reader.stored().items()
            if name.startswith(self.prefix)
        }
        shapes = self._own.shapes()
        stages = [shapes] if self.mesh is None else self.mesh.said_by_stages(shapes)
        if wrong := differences(dict(ChainMap(*stages)), stored):
            raise ModelError(f"{folder} is a checkpoint of another model: {', '.join(wrong[:5])} differ")
        self._own.make_room(stored)
        if self.offloaded is not None:
            self.offloaded.reoffload()
        random = random_states(self._rank, self.model.device)
        wanted = self._own.tensors() | random
        found = {self.prefix + name: x for name, x in wanted.items() if name in stored}
        reader.read(found, self._group)
        set_random_states(random)
        self._refresh()
        self.step = step

    @property
    def _own(self) -> States:
        averages = {} if self.ema is None else self.ema.tensors
        return States(self.model, self.optimizer, averages, {} if self.scale is None else self.scale.tensors)

    @property
    def _rank(self) -> int:
        return self.mesh.world.rank if self.mesh else 0

    @property
    def _group(self) -> Any:
        return torch.distributed.group.WORLD if self.mesh else None
