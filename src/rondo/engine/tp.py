"""One engine on several ranks, each with a slice of the model and of the KV cache.

Every rank has the same scheduler and does the same to it in the same order, so what rank 0 sends is not the plan nor
the tokens but only what came from outside since the last step. All sample from the same gathered logits. With each step
goes a hash of its plan, and of the tokens of the one before: a rank that thinks otherwise ends, and the engine with it.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from rondo.base.errors import ConfigError, RondoError
from rondo.client.types import FinishReason, GenerateRequest
from rondo.engine.adapters import LoadedAdapter
from rondo.engine.config import EngineConfig
from rondo.engine.core import EngineCore
from rondo.engine.load import torch_dtype
from rondo.engine.plan import Plan
from rondo.engine.ranks import Ranks, Setup
from rondo.engine.request import Request
from rondo.engine.runner import StepResult
from rondo.engine.sleep import check_tags
from rondo.engine.speculate.controller import Controller
from rondo.engine.step import Step
from rondo.models import parse, read_config
from rondo.models.checkpoint import check
from rondo.parallel.group import Group, connect
from rondo.parallel.load import load
from rondo.parallel.shard import Shard
from rondo.parallel.split import split

STEP_SECONDS = 60.0
"""The longest that one rank waits for another within a step."""
IMPORTED, LOADED = 1, 2
"""What a rank has done when it has said so once, and twice."""
MOST_HELD = 256
"""Commands that may wait for the next step; an engine that is paused for long sends them anyway."""

Command = tuple[str, tuple[Any, ...]]


@dataclass(frozen=True)
class Message:
    """What was done to the engine, in order; what the last of it, a step, computes if it computes anything, and whether
    it speculates, which is a matter of time; and what the step before sampled."""

    commands: list[Command]
    plan: int | None
    speculates: bool
    sampled: int


def lead(
    folder: Path,
    config: EngineConfig,
    device: torch.device,
    eos_ids: tuple[int, ...] | None,
    weight_version: int,
) -> EngineCore:
    """Starts the other ranks and returns rank 0. What is wrong with model or settings is said before that."""
    size = config.tensor_parallel
    if config.adapters_dir is not None:
        raise no_adapters(size, "adapters_dir")
    check(folder)
    split(parse(read_config(folder)), 0, size)
    devices = _devices(device, size)
    if device.type == "cpu" and config.threads is None:
        config = config.model_copy(update={"threads": max(1, torch.get_num_threads() // size)})
    ranks = Ranks(size, STEP_SECONDS)
    setup = Setup(0, folder, config, devices[0], eos_ids, weight_version, ranks.meeting, ranks.seconds)
    try:
        for other in ranks.others:
            own = replace(setup, rank=other.rank, device=devices[other.rank])
            other.channel.send(own, ranks.seconds)
        ranks.expect(IMPORTED)
        model, group = load_shard(setup)
        ranks.expect(LOADED)
        ranks.send(None)
        return Leader(model, group, setup, ranks)
    except (RuntimeError, OSError) as error:
        raise ranks.give_up(error) from error
    except BaseException:
        ranks.close()
        raise


def load_shard(setup: Setup) -> tuple[Shard, Group]:
    device = torch.device(setup.device)
    if device.type == "cuda":
        torch.cuda.set_device(device)
    config = setup.config
    group = connect(setup.meeting, setup.rank, config.tensor_parallel, device, setup.seconds)
    return load(setup.folder, group, torch_dtype(config.dtype), device), group


def _devices(device: torch.device, size: int) -> list[str]:
    if device.type != "cuda":
        return [str(device)] * size
    if device.index is not None:
        raise ConfigError(
            f"device is {device}, but tensor_parallel is {size}: the ranks take the GPUs from 0 on. "
            "Choose among them with CUDA_VISIBLE_DEVICES, and set device to cuda.",
            param="device",
        )
    count = torch.cuda.device_count()
    if count < size:
        raise ConfigError(
            f"tensor_parallel is {size}, but there are {count} GPUs. Lower it, or set device to cpu.",
            param="tensor_parallel",
        )
    return [f"cuda:{rank}" for rank in range(size)]


class RankCore(EngineCore):
    def __init__(self, model: Shard, group: Group, setup: Setup) -> None:
        self.group = group
        self.sampled = 0
        """A hash of what the last step sampled."""
        config, device = setup.config, torch.device(setup.device)
        read = partial(load, setup.folder, group, torch_dtype(config.dtype), device)
        super().__init__(model, config, setup.eos_ids, setup.weight_version, reload=read)

    def _agree(self, number: int) -> int:
        """The rank with the least decides."""
        return self.group.least(number)

    def start_weight_update(self) -> None:
        raise ConfigError(
            f"weights cannot be updated in place while the model is divided among {self.group.size} ranks. "
            "Set tensor_parallel to 1.",
            param="tensor_parallel",
        )

    def load_adapter(self, name: str, folder: str | Path, replace: bool = False) -> None:
        raise no_adapters(self.group.size, "tensor_parallel")


def no_adapters(size: int, param: str) -> ConfigError:
    return ConfigError(
        f"adapters cannot be served while the model is divided among {size} ranks. Set tensor_parallel to 1, or merge "
        "the adapter into the model.",
        param=param,
    )


class Leader(RankCore):
    """Rank 0. What is done to it is done to the others before the next step."""

    def __init__(self, model: Shard, group: Group, setup: Setup, ranks: Ranks) -> None:
        super().__init__(model, group, setup)
        self.ranks = ranks
        ranks.on_lost.append(lambda error: group.abort())
        self._told: list[Command] = []
        # Without a reference to this object: it closes the ranks when it is collected, or at the process's end.
        self._close = weakref.finalize(self, ranks.close)

    def add(self, request: GenerateRequest, adapter: LoadedAdapter | None = None) -> list[Request]:
        self.ranks.check()
        samples = super().add(request, adapter)
        self._tell("add", request)
        return samples

    def abort(
        self, request_id: str, index: int | None = None, reason: FinishReason = "abort"
    ) -> list[Request]:
        ended = super().abort(request_id, index, reason)
        if ended:
            self._tell("abort", request_id, index, reason)
        return ended

    def hold(self) -> None:
        super().hold()
        self._tell("hold")

    def release(self) -> None:
        super().release()
        self._tell("release")

    def reset_prefix_cache(self) -> None:
        super().reset_prefix_cache()
        self._tell("reset_prefix_cache")

    def sleep(self, level: int = 1) -> None:
        super().sleep(level)
        self._tell("sleep", level)
        self._wait()

    def wake(self, tags: Sequence[str] | None = None) -> None:
        """All ranks at once: each may have a large slice to read."""
        check_tags(tags)
        self.ranks.check()
        self._tell("wake", tags)
        self._send(None)
        try:
            super().wake(tags)
        except Exception as error:
            # Another rank may have had the memory: they are no longer alike.
            raise self.ranks.give_up(error) from error
        self._meet()

    def step(self) -> Step:
        self._check_awake()
        self.ranks.check()
        self._tell("step")
        return super().step()

    def watch(self, fail: Callable[[RondoError], None]) -> None:
        self.ranks.on_lost.append(fail)
        if self.ranks.lost is not None:
            fail(self.ranks.lost)

    def close(self) -> None:
        self._close()

    def _compute(self, plan: Plan) -> StepResult:
        try:
            self._send(digest_of_plan(plan))
            result = super()._compute(plan)
        except Exception as error:
            raise self.ranks.give_up(error) from error
        except BaseException as error:
            self.ranks.give_up(error)
            raise
        self.sampled = digest_of_tokens(result)
        return result

    def _wait(self) -> None:
        """Until every rank has done what it was told: memory is given back, or taken, on all of them."""
        self.ranks.check()
        self._send(None)
        self._meet()

    def _meet(self) -> None:
        try:
            self.group.least(0)
        except RuntimeError as error:
            raise self.ranks.give_up(error) from error

    def _tell(self, name: str, *args: Any) -> None:
        if self.ranks.lost is not None:
            return
        self._told.append((name, args))
        if len(self._told) >= MOST_HELD and name != "step":
            self._send(None)

    def _send(self, plan: int | None) -> None:
        told, self._told = self._told, []
        try:
            self.ranks.send(Message(told, plan, self.scheduler.lookahead > 0, self.sampled))
        except OSError as error:
            raise self.ranks.give_up(error) from error


class Told(Controller):
    """Rank 0 measures, and says whether to speculate."""

    speculates = False

    def allows(self, load: int) -> bool:
        return self.speculates

    def observe(self, load: int, seconds: float, accepted: int, speculated: bool) -> None:
        """Its own time does not count."""


class Follower(RankCore):
    """Any other rank."""

    def __init__(self, model: Shard, group: Group, setup: Setup) -> None:
        super().__init__(model, group, setup)
        self._expected: int | None = None
        self._controller = Told()
        if self.speculation is not None:
            self.speculation.controller = self._controller

    def follow(self, message: Message) -> None:
        if message.sampled != self.sampled:
            raise RuntimeError("it sampled other tokens than rank 0")
        self._expected = message.plan
        self._controller.speculates = message.speculates
        for name, args in message.commands:
            getattr(self, name)(*args)

    def sleep(self, level: int = 1) -> None:
        super().sleep(level)
        self.group.least(0)

    def wake(self, tags: Sequence[str] | None = None) -> None:
        super().wake(tags)
        self.group.least(0)

    def _compute(self, plan: Plan) -> StepResult:
        if digest_of_plan(plan) != self._expected:
            raise RuntimeError("it planned another step than rank 0")
        self._expected = None
        result = super()._compute(plan)
        self.sampled = digest_of_tokens(result)
        return result


def digest_of_plan(plan: Plan) -> int:
    """Hashes of numbers are the same in every process."""
    moves = tuple(
        (r.arrival, r.row, r.computed, r.planned, r.blocks[-1]) for r in (*plan.decodes, *plan.chunks)
    )
    others = tuple(r.arrival for r in (*plan.admitted, *plan.preempted))
    guesses = tuple((r.arrival, *r.proposed) for r in plan.ahead)
    return hash((moves, others, guesses, *map(tuple, (plan.copies, plan.swap_out, plan.swap_in))))


def digest_of_tokens(result: StepResult) -> int:
    return hash(tuple(result.sampled.tokens)) if result.sampled is not None else 0
