"""Engine core of one of several ranks: a slice of the model, and the same steps on every rank."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from rondo.base.errors import ConfigError, ModelError, RondoError
from rondo.engine.core import EngineCore
from rondo.engine.ranks.ranks import RankSetup
from rondo.engine.ranks.shared_adapters import OwnColumns
from rondo.engine.runner.runner import StepResult
from rondo.engine.schedule.plan import StepPlan
from rondo.engine.weights.adapter_reader import AdapterReader
from rondo.engine.weights.sleep import Reload
from rondo.models.devices import torch_dtype
from rondo.parallel.tensor.group import RankGroup, connect
from rondo.parallel.tensor.load import load
from rondo.parallel.tensor.shard import ShardedDecoder


def load_shard(setup: RankSetup) -> tuple[ShardedDecoder, RankGroup]:
    device = torch.device(setup.device)
    if device.type == "cuda":
        torch.cuda.set_device(device)
    config = setup.config
    group = connect(setup.meeting, setup.rank, config.tensor_parallel, device, setup.seconds)
    return load(setup.folder, group, torch_dtype(config.dtype), device), group


class RankCore(EngineCore):
    stages_aside = False

    def __init__(self, model: ShardedDecoder, group: RankGroup, setup: RankSetup) -> None:
        self.group = group
        self.shard = model
        self.sampled = 0
        """Digest of the tokens sampled in the last step."""
        config, device = setup.config, torch.device(setup.device)
        read = partial(load, setup.folder, group, torch_dtype(config.dtype), device)
        super().__init__(model, config, setup.eos_ids, setup.weight_version, reload=read)

    def _agree(self, number: int) -> int:
        """The minimum over all ranks."""
        return self.group.least(number)

    def start_weight_update(self) -> None:
        raise ConfigError(
            f"weights cannot be updated in place while the model is divided among {self.group.size} ranks. "
            "Use update_weights, which reads them from a folder, or set tensor_parallel to 1.",
            param="tensor_parallel",
        )

    def _reload_from(self, folder: Path) -> Reload:
        return partial(load, folder, self.group, self.model.dtype, self.model.device)

    def _all_have(self, read: Callable[[], dict[str, Tensor]]) -> dict[str, Tensor]:
        try:
            tensors = read()
        except RondoError as error:
            self.group.say(error.message)
            raise
        said = self.group.say("")
        refused = next((rank for rank, each in enumerate(said) if each), None)
        if refused is not None:
            raise ModelError(
                f"rank {refused} of {self.group.size} could not read the weights, so none has them: {said[refused]}"
            )
        return tensors

    def _adapter_reader(self) -> AdapterReader:
        return OwnColumns(self.shard, self.config.max_adapter_rank)


def digest_of_plan(plan: StepPlan) -> int:
    """Digest of a plan, equal in every process because hashes of integers are."""
    moves = tuple(
        (r.arrival, r.row, r.computed, r.planned, *(table.blocks[-1] for table in r.tables))
        for r in (*plan.decodes, *plan.chunks)
    )
    others = tuple(r.arrival for r in (*plan.admitted, *plan.preempted))
    guesses = tuple((r.arrival, *r.proposed) for r in plan.ahead)
    blocks = tuple(tuple(map(tuple, each)) for each in (plan.copies, plan.swap_out, plan.swap_in))
    return hash((moves, others, guesses, blocks))


def digest_of_tokens(result: StepResult) -> int:
    return hash(tuple(result.sampled.tokens)) if result.sampled is not None else 0
