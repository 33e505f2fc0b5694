"""Tensor parallelism: one engine on several ranks, each with a slice of the model and of the KV cache.

Every rank runs the same scheduler on the same commands in the same order. Rank 0 therefore sends neither plans nor
tokens, only the external events since the last step. All ranks sample from the same gathered logits. Each step carries
a digest of its plan and of the previous step's tokens; a rank with a different digest exits, and the engine with it.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from rondo.base.errors import ConfigError, RondoError
from rondo.client.engine import RunningRequests
from rondo.client.types import FinishReason, GenerateRequest
from rondo.engine.config import EngineConfig
from rondo.engine.core import EngineCore
from rondo.engine.ranks.outbox import Outbox, SharedStep
from rondo.engine.ranks.rank_core import RankCore, digest_of_plan, digest_of_tokens, load_shard
from rondo.engine.ranks.ranks import Ranks, RankSetup
from rondo.engine.ranks.shared_adapters import SharedReader
from rondo.engine.runner.deterministic import check_settings
from rondo.engine.runner.runner import StepResult
from rondo.engine.schedule.plan import StepPlan
from rondo.engine.schedule.request import Request
from rondo.engine.schedule.step import NOTHING, StepOutput
from rondo.engine.weights.adapter_reader import AdapterReader
from rondo.engine.weights.adapters import LoadedAdapter, folder_of_adapters
from rondo.engine.weights.sleep import check_tags
from rondo.models import parse, read_config
from rondo.models.devices import device_named
from rondo.models.files.checkpoint import check
from rondo.parallel.layout.split import split
from rondo.parallel.tensor.group import RankGroup
from rondo.parallel.tensor.shard import ShardedDecoder

STEP_SECONDS = 60.0
"""Timeout of one rank waiting for another within a step."""
IMPORTED, LOADED = 1, 2
"""Startup stages of a rank: the number of reports that it has sent."""


def lead(
    folder: Path,
    config: EngineConfig,
    eos_ids: tuple[int, ...] | None,
    weight_version: int,
) -> EngineCore:
    """Starts the other ranks and returns rank 0. Errors in the model or the settings are raised before any rank is
    started."""
    size = config.tensor_parallel
    folder_of_adapters(config)
    check_settings(config)
    check(folder)
    whole = parse(read_config(folder))
    if whole.quantization is not None:
        raise ConfigError(
            f"tensor_parallel is {size}, but the weights are quantized ({whole.quantization.method}), which only one "
            "rank can hold: set tensor_parallel to 1.",
            param="tensor_parallel",
        )
    split(whole, 0, size)
    devices = _devices(config.device, size)
    if devices[0] == "cpu" and config.threads is None:
        config = config.model_copy(update={"threads": max(1, torch.get_num_threads() // size)})
    ranks = Ranks(size, STEP_SECONDS)
    setup = RankSetup(0, folder, config, devices[0], eos_ids, weight_version, ranks.meeting, ranks.seconds)
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
        raise ranks.end_after_failure(error) from error
    except BaseException:
        ranks.close()
        raise


def _devices(name: str, size: int) -> list[str]:
    """Device of each rank. The number of GPUs is checked before any is used."""
    if name.startswith("cuda:"):
        raise ConfigError(
            f"device is {name}, but tensor_parallel is {size}: the ranks take the GPUs from 0 on. "
            "Choose among them with CUDA_VISIBLE_DEVICES, and set device to cuda.",
            param="device",
        )
    if name != "cuda" and (device := device_named(name)).type != "cuda":
        return [str(device)] * size
    count = torch.cuda.device_count()
    if count < size:
        raise ConfigError(
            f"tensor_parallel is {size}, but there are {count} GPUs. Lower it, or set device to cpu.",
            param="tensor_parallel",
        )
    return [f"cuda:{rank}" for rank in range(size)]


class Leader(RankCore):
    """Rank 0. Its commands are repeated by the other ranks before the next step."""

    def __init__(self, model: ShardedDecoder, group: RankGroup, setup: RankSetup, ranks: Ranks) -> None:
        self.ranks = ranks
        self.outbox = Outbox(ranks)
        super().__init__(model, group, setup)
        self.grammars.share = self._share_grammar
        ranks.on_lost.append(lambda error: group.abort())
        # A weak finalizer without a reference to this object: it closes the ranks when this object is
        # collected, or at exit.
        self._close = weakref.finalize(self, ranks.close)

    def add(self, request: GenerateRequest, adapter: LoadedAdapter | None = None) -> list[Request]:
        self.ranks.check()
        samples = super().add(request, adapter)
        held = samples[0].adapter
        if held is None:
            self.outbox.queue("add", request)
        else:
            self.outbox.queue("add_with", request, self._reader.number(held.served), held.key)
        return samples

    def unload_adapter(self, name: str) -> list[Request]:
        ended = super().unload_adapter(name)
        self.outbox.send()
        return ended

    def abort(
        self, request_id: str, index: int | None = None, reason: FinishReason = "abort"
    ) -> list[Request]:
        ended = super().abort(request_id, index, reason)
        if ended:
            self.outbox.queue("abort", request_id, index, reason)
        return ended

    def hold(self) -> None:
        super().hold()
        self.outbox.queue("hold")

    def release(self) -> None:
        super().release()
        self.outbox.queue("release")

    def reset_prefix_cache(self) -> None:
        super().reset_prefix_cache()
        self.outbox.queue("reset_prefix_cache")

    def update_weights(
        self, folder: Path, version: int, requests: RunningRequests = "retain"
    ) -> list[Request]:
        self._check_update(version)
        self.ranks.check()
        self.outbox.send(("update_weights", (folder, version, requests)))
        try:
            return super().update_weights(folder, version, requests)
        except RondoError:
            raise
        except Exception as error:
            # Only some ranks may have the new version.
            raise self.ranks.end_after_failure(error) from error

    def sleep(self, level: int = 1) -> None:
        super().sleep(level)
        self.outbox.queue("sleep", level)
        self._wait()

    def wake(self, tags: Sequence[str] | None = None) -> None:
        """Wakes all ranks at once, since each may have a large slice to read."""
        check_tags(tags)
        self.ranks.check()
        self.outbox.send(("wake", (tags,)))
        try:
            super().wake(tags)
        except Exception as error:
            # Another rank may have had enough memory: the ranks are no longer alike.
            raise self.ranks.end_after_failure(error) from error
        self._meet()

    def step(self) -> StepOutput:
        self._check_awake()
        self.ranks.check()
        step = super().step()
        if step is NOTHING:
            # The other ranks plan the step too and also have nothing to compute.
            self.outbox.queue("step")
        return step

    def watch(self, fail: Callable[[RondoError], None]) -> None:
        self.ranks.on_lost.append(fail)
        if self.ranks.lost is not None:
            fail(self.ranks.lost)

    def close(self) -> None:
        super().close()
        self._close()

    def _compute(self, plan: StepPlan) -> StepResult:
        try:
            together = SharedStep(digest_of_plan(plan), self.scheduler.lookahead > 0, self.sampled)
            self.outbox.send(("step", ()), together=together)
            result = super()._compute(plan)
        except Exception as error:
            raise self.ranks.end_after_failure(error) from error
        except BaseException as error:
            self.ranks.end_after_failure(error)
            raise
        self.sampled = digest_of_tokens(result)
        return result

    def _share_grammar(self, name: str, args: tuple[Any, ...]) -> None:
        self.outbox.queue(name, *args)

    def _wait(self) -> None:
        """Waits until every rank has executed the queued commands, so that memory is freed or
        allocated on all of them."""
        self.ranks.check()
        self.outbox.send()
        self._meet()

    def _meet(self) -> None:
        try:
            self.group.least(0)
        except RuntimeError as error:
            raise self.ranks.end_after_failure(error) from error

    def _adapter_reader(self) -> AdapterReader:
        self._reader = SharedReader(self.shard, self.config.max_adapter_rank, self.outbox)
        return self._reader
