"""The learner's interface over Megatron-Core's layers. Its inputs and outputs have the native names and shapes, so that
files and receivers of weights do not depend on the learner.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from rondo import models
from rondo.base.errors import ConfigError, ModelError
from rondo.models.adapters.attached import adapter_of
from rondo.models.decoder import Decoder
from rondo.models.files.mapping import plain_outgoing
from rondo.parallel.config import MemoryConfig
from rondo.parallel.tensor.own_part import local_of
from rondo.train.checkpoints import dcp
from rondo.train.checkpoints.states import (
    AVERAGE,
    MODEL,
    OPTIMIZER,
    RANDOM,
    TensorMeta,
    differences,
    random_states,
    set_random_states,
)
from rondo.train.config import OptimConfig
from rondo.train.learner.learner import Learner, Metrics
from rondo.train.megatron.check import FIELD, check, check_installed
from rondo.train.megatron.gradients import add_up, clip
from rondo.train.megatron.part import MegatronShard
from rondo.train.megatron.passes import MegatronPasses, MegatronPipeline

if TYPE_CHECKING:
    from rondo.parallel.ranks.mesh import Mesh


class MegatronLearner(Learner):
    def __init__(self, model: Decoder, config: OptimConfig, mesh: Mesh | None = None) -> None:
        """Copies this rank's part of the model, and retains only the model's shape."""
        if adapter_of(model) is not None:
            raise ConfigError(
                f"{FIELD}: megatron trains whole weights, and the model has an adapter. Use native.",
                param=FIELD,
            )
        check(model.config, config, None if mesh is None else mesh.degrees)
        check_installed()
        self._part = MegatronShard(model, config, mesh)
        super().__init__(model, config.model_copy(update={"precision": None}), mesh)
        self.config = config
        self.model = models.build(model.config).to(model.dtype)

    def _passes_over(self, model: Decoder, memory: MemoryConfig) -> MegatronPasses:
        kind = MegatronPasses if self._part.mesh is None else MegatronPipeline
        return kind(self._part, model.config)

    @property
    def device(self) -> torch.device:
        return self._part.device

    @property
    def trained(self) -> nn.Module:
        return self._part.masters

    def _clip(self) -> float:
        add_up(self._part)
        return clip(self._part, self.config.clip)

    def optim_step(
        self, lr: float | None = None, accept: Callable[[float], bool] = lambda norm: True
    ) -> Metrics:
        metrics = super().optim_step(lr, accept)
        self._part.masters.clear_gradients()
        return metrics

    def _refresh(self) -> None:
        self._part.masters.refresh()

    def shards(self) -> Iterator[tuple[str, Tensor]]:
        """As in the native learner, on every rank. Tensors that Megatron-Core fuses across groups of heads are
        copied.
        """
        parts = self._part.computing()
        for slot in self.model.slots():
            names = [piece.param for piece in slot.pieces]
            [tensor] = plain_outgoing([slot], dict(self._part.gathered(parts, names)))
            yield tensor.name, tensor.make()

    def gathered(self, dtype: torch.dtype) -> Iterator[tuple[str, Tensor]]:
        parts = {name: x.to(dtype) for name, x in self._part.apart(self._part.parameters).items()}
        return self._part.gathered(parts, self._names())

    def whole(self) -> Decoder:
        """The model in the first rank's host memory; all ranks must take part."""
        model = models.build(self.model.config).to(self.model.dtype)
        weights = self._gathered(self._part.parameters)
        if weights:
            model.load_state_dict(weights, strict=False, assign=True)
            model.tie()
        return model

    def export_hf(self, folder: Path) -> None:
        model = self.whole()
        if self._first:
            models.save(model, folder)

    def offload(self, to: str, *, weights: bool = True) -> None:
        raise ConfigError(f"{FIELD}: the megatron learner does not support offload. Use native.", param=FIELD)

    def states(self) -> dict[str, Tensor]:
        """As in the native learner."""
        found = {
            prefix + name: self._part.placed(name, own)
            for prefix, tensors in self._kept().items()
            for name, own in self._part.apart(tensors).items()
        }
        return found | random_states(self._rank, self.device)

    def load(self, folder: str | Path, step: int) -> None:
        """Loads a checkpoint of either learner, from any number of ranks, in place."""
        reader = dcp.Reader(str(folder))
        stored = reader.stored()
        self._check(folder, stored)
        self._make_room(stored)
        wanted = {name: torch.empty_like(x) for name, x in self.states().items() if name in stored}
        reader.read(wanted, self._group)
        for prefix, tensors in self._kept().items():
            parts = {name.removeprefix(prefix): x for name, x in wanted.items() if name.startswith(prefix)}
            self._part.fill(tensors, {name: local_of(x) for name, x in parts.items()})
        self._refresh()
        set_random_states({name: state for name, state in wanted.items() if name.startswith(RANDOM)})
        self.step = step

    def _kept(self) -> dict[str, dict[str, Tensor]]:
        """Tensors of parameters in a checkpoint: by prefix of the name, then by Megatron-Core's names."""
        found = defaultdict[str, dict[str, Tensor]](dict)
        for name, parameter in self._part.parameters.items():
            found[MODEL][name] = parameter.detach()
            if self.ema is not None:
                found[AVERAGE][name] = self.ema.tensors[name]
            for key, value in self.optimizer.state.get(parameter, {}).items():
                found[f"{OPTIMIZER}{key}/"][name] = value
        return found

    def _make_room(self, stored: Mapping[str, TensorMeta]) -> None:
        """Replaces the optimizer's state by empty tensors like the stored ones."""
        self.optimizer.state.clear()
        for fused in self._part.table:
            parameter = self._part.parameters[fused.name]
            for label, what in stored.items():
                if label.startswith(OPTIMIZER) and label.endswith(f"/{fused.ours[0]}"):
                    key = label.removeprefix(OPTIMIZER).partition("/")[0]
                    shape = parameter.shape if what.shape else ()
                    made = torch.zeros(shape, dtype=what.dtype, device=self.device)
                    self.optimizer.state[parameter][key] = made

    def _gathered(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Whole tensors by native names, in the first rank's host memory."""
        parts = self._part.apart(tensors)
        gathered = self._part.gathered(parts, self._names())
        return {name: tensor.cpu().contiguous() for name, tensor in gathered if self._first}

    def _names(self) -> list[str]:
        return [name for name, _ in self.model.named_parameters()]

    def _check(self, folder: str | Path, stored: Mapping[str, TensorMeta]) -> None:
        own = {name: tuple(parameter.shape) for name, parameter in self.model.named_parameters()}
        prefixes = (MODEL,) if self.ema is None else (MODEL, AVERAGE)
        shapes = {prefix + name: shape for prefix in prefixes for name, shape in own.items()}
        if wrong := differences(shapes, stored):
            raise ModelError(f"{folder} is a checkpoint of another model: {', '.join(wrong[:5])} differ")

    @property
    def _first(self) -> bool:
        return self.mesh is None or self.mesh.world.first
