"""Choice of the rollout engine and of the weight transfer from the learner to it."""

from __future__ import annotations

import copy
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from rondo.client.engine import Engine
from rondo.engine.config import EngineConfig
from rondo.engine.entrypoints.async_engine import AsyncEngine
from rondo.engine.entrypoints.llm import LLM
from rondo.models import Decoder
from rondo.rl.config import RlConfig
from rondo.rl.rollout.async_collector import Answers, AsyncCollector, EventLoop, Pushes
from rondo.rl.rollout.prompt_sampler import PromptSampler
from rondo.rl.rollout.requests import Judging, RolloutBuilder, Unscored
from rondo.rl.rollout.scoring import RolloutScorer
from rondo.rl.rollout.sync_collector import Collector, SyncCollector
from rondo.rl.tasks.types import AnyTask
from rondo.rl.update.aux_models import AuxiliaryModels
from rondo.rl.update.division import ALONE, RankDivision
from rondo.text.tokenizer import Tokenizer
from rondo.train.learner.learner import Learner, Metrics
from rondo.weights.directory import Directory
from rondo.weights.in_place import InPlace
from rondo.weights.staged import Staged

if TYPE_CHECKING:
    from rondo.rl.remote.rank_policy import RankPolicy
    from rondo.rl.rollout.replica import WeightReplica

PUSH_SECONDS = 600.0
"""Timeout of a weight push."""


def collector_for(
    learner: Learner,
    tokenizer: Tokenizer,
    task: AnyTask,
    config: RlConfig,
    company: AuxiliaryModels,
    division: RankDivision = ALONE,
    replica: WeightReplica | RankPolicy | None = None,
) -> Collector:
    """Collector for the configured mode. `replica` is the copy of a policy that is divided over ranks, or the policy
    itself if each rank pushes its shards.

    The synchronous collector runs in the caller's thread and shares the learner's tensors, or those of the replica.
    """
    name = config.model or "policy"
    make = partial(_builder, tokenizer, task, config)
    draws = PromptSampler(task, config.seed, config.prompts_per_step)
    if replica is None:
        settings = engine_config(config)
        if not synchronous(config, task):
            return _asynchronous(learner.computing, tokenizer, config, partial(make, company=company), draws)
        llm = LLM(learner.computing, tokenizer, settings)
        weights = InPlace(name, learner.shards, Directory())
        return SyncCollector(llm, make(llm.core.max_model_len, company=company), draws, weights)
    # Collectors of ranks are imported only for several ranks: they import torch.distributed.
    from rondo.rl.rollout.rank_collectors import DividedCollector, FirstRankCollector
    from rondo.rl.rollout.replica import WeightReplica

    alone = partial(make, company=Unscored())
    if not isinstance(replica, WeightReplica):
        from rondo.rl.remote.rank_policy import FollowingPush

        replica.attach(learner)
        if not division.first:
            return FirstRankCollector(None, FollowingPush(replica, config.engine).push, division, company)
        own = _asynchronous(learner.model, tokenizer, config, alone, draws, replica)
        return FirstRankCollector(own, lambda: None, division, company)
    if synchronous(config, task):
        settings = engine_config(config, parts=division.engines(config.rollout_ranks))
        engine = None if replica.model is None else LLM(replica.model, tokenizer, settings)
        longest = [None if engine is None else engine.core.max_model_len]
        fits = min(most for most in division.said_by_all(longest[0]) if most is not None)
        return DividedCollector(engine, make(fits, company=company), draws, name, replica, learner, division)
    copied = replica.model
    engines = None if copied is None else _asynchronous(copied, tokenizer, config, alone, draws)
    return FirstRankCollector(engines, partial(replica.pull, learner), division, company)


def synchronous(config: RlConfig, task: AnyTask) -> bool:
    """Whether rollouts are synchronous: no agent episodes and no remote engine are configured."""
    return config.mode == "sync" and not hasattr(task, "play") and not config.engine.url


def _builder(
    tokenizer: Tokenizer, task: AnyTask, config: RlConfig, longest: int, *, company: Judging
) -> RolloutBuilder:
    fits = min(longest, config.tokens_per_microbatch)
    scorer, max_tokens = RolloutScorer(task, config.grader_timeout), config.max_tokens or task.max_tokens
    made = RolloutBuilder(tokenizer, task, config, max_tokens, fits, scorer, company)
    prepare: Callable[[Tokenizer, int], None] | None = getattr(task, "prepare", None)
    if prepare is not None:
        prepare(tokenizer, fits)
    return made


def _asynchronous(
    model: Decoder,
    tokenizer: Tokenizer,
    config: RlConfig,
    builder: Callable[[int], RolloutBuilder],
    draws: PromptSampler,
    ranks: RankPolicy | None = None,
) -> AsyncCollector:
    settings, events = engine_config(config), EventLoop()
    try:
        engine: Answers
        pushes: Pushes
        if config.engine.url:
            # HTTP clients are imported only for remote engines.
            from rondo.rl.remote.connect import connect

            engine, pushes = connect(model, tokenizer, config, settings, events, ranks)
        else:
            waits = config.mode == "one_step_off"
            name = config.model or "policy"
            pushes = copied = Copied(model, tokenizer, settings, name, events, waits)
            engine = copied.engine
        return AsyncCollector(engine, builder(engine.max_model_len), draws, pushes, events)
    except BaseException:
        events.close()
        raise


def shared_engine(collector: Collector) -> LLM | None:
    """The engine that shares the learner's weights and sleeps during updates, if any."""
    return collector.engine if type(collector) is SyncCollector else None


def engine_config(config: RlConfig, parts: int = 1) -> EngineConfig:
    """Engine limits: all samples of a step run at once, and the samples of later steps are queued. `parts`: number of
    engines among which the prompts of a step are divided.
    """
    samples = -(-config.prompts_per_step // parts) * config.samples_per_prompt
    eval_prompts = -(-config.eval_prompts // parts)
    asked = eval_prompts * config.evaluate.samples
    return EngineConfig(
        max_num_seqs=max(samples, min(asked, max(samples, eval_prompts))),
        max_queued=(config.staleness + 1) * samples + asked,
        max_step_tokens=config.tokens_per_microbatch,
        block_size=config.block_size,
        deterministic=config.deterministic,
        seed=config.seed,
    )


class Copied:
    """An engine in its own thread with a copy of the weights, so that the learner can update its own during
    generation.

    `waits`: a push waits for running requests, so that each sample has one weight version. Otherwise running requests
    continue with the next weights.
    """

    def __init__(
        self,
        model: Decoder,
        tokenizer: Tokenizer,
        config: EngineConfig,
        name: str,
        events: EventLoop,
        waits: bool,
    ) -> None:
        own = copy.deepcopy(model).requires_grad_(False)
        self.engine = AsyncEngine(LLM(own, tokenizer, config).core, tokenizer, name)
        self._staged = Staged(name, model, own, _FromOutside(self.engine, events, waits), Directory())

    @property
    def version(self) -> int:
        return self.engine.weight_version

    def update(self, version: int) -> AbstractContextManager[None]:
        return self._staged.update(version)

    def metrics(self) -> Metrics:
        return {}

    def close(self) -> None:
        self.engine.stop()


@dataclass(frozen=True)
class _FromOutside:
    """Synchronous weight update calls for callers outside of the event loop."""

    engine: Engine
    events: EventLoop
    waits: bool

    def start_weight_update(self) -> None:
        if self.waits:
            self.events.do(self.engine.pause("wait"), PUSH_SECONDS)
        self.events.do(self.engine.start_weight_update(), PUSH_SECONDS)

    def finish_weight_update(self, version: int) -> None:
        self.events.do(self.engine.finish_weight_update(version), PUSH_SECONDS)
        if self.waits:
            self.events.do(self.engine.resume(), PUSH_SECONDS)
