"""Choice of the rollout engine and of the weight transfer from the learner to it."""

from __future__ import annotations

import copy
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass

from rondo.client.engine import Engine
from rondo.engine.config import EngineConfig
from rondo.engine.entrypoints.async_engine import AsyncEngine
from rondo.engine.entrypoints.llm import LLM
from rondo.models import Decoder
from rondo.rl.config import RlConfig
from rondo.rl.rollout.async_collector import Answers, AsyncCollector, EventLoop, Pushes
from rondo.rl.rollout.prompt_sampler import PromptSampler
from rondo.rl.rollout.requests import RolloutBuilder
from rondo.rl.rollout.scoring import RolloutScorer
from rondo.rl.rollout.sync_collector import Collector, SyncCollector
from rondo.rl.tasks.types import AnyTask
from rondo.rl.update.aux_models import AuxiliaryModels
from rondo.text.tokenizer import Tokenizer
from rondo.train.learner.learner import Learner, Metrics
from rondo.weights.directory import Directory
from rondo.weights.in_place import InPlace
from rondo.weights.staged import Staged

PUSH_SECONDS = 600.0
"""Timeout of a weight push."""


def collector_for(
    learner: Learner, tokenizer: Tokenizer, task: AnyTask, config: RlConfig, company: AuxiliaryModels
) -> Collector:
    """Collector for the configured mode.

    The synchronous collector runs in the caller's thread and shares the learner's tensors. It is used if no agent
    episodes and no remote engine are configured.
    """
    max_tokens = config.max_tokens or task.max_tokens
    draws = PromptSampler(task, config.seed, config.prompts_per_step)
    scorer = RolloutScorer(task, config.grader_timeout)
    name = config.model or "policy"
    settings = engine_config(config)

    def builder(longest: int) -> RolloutBuilder:
        fits = min(longest, config.tokens_per_microbatch)
        made = RolloutBuilder(tokenizer, task, config, max_tokens, fits, scorer, company)
        prepare: Callable[[Tokenizer, int], None] | None = getattr(task, "prepare", None)
        if prepare is not None:
            prepare(tokenizer, fits)
        return made

    if config.mode == "sync" and not hasattr(task, "play") and not config.engine.url:
        llm = LLM(learner.computing, tokenizer, settings)
        weights = InPlace(name, learner.shards, Directory())
        return SyncCollector(llm, builder(llm.core.max_model_len), draws, weights)
    events = EventLoop()
    try:
        engine: Answers
        pushes: Pushes
        if config.engine.url:
            # HTTP clients are imported only for remote engines.
            from rondo.rl.remote.connect import connect

            engine, pushes = connect(learner.computing, tokenizer, config, settings, events)
        else:
            waits = config.mode == "one_step_off"
            pushes = copied = Copied(learner.computing, tokenizer, settings, name, events, waits)
            engine = copied.engine
        return AsyncCollector(engine, builder(engine.max_model_len), draws, pushes, events)
    except BaseException:
        events.close()
        raise


def shared_engine(collector: Collector) -> LLM | None:
    """The engine that shares the learner's weights and sleeps during updates, if any."""
    return collector.engine if isinstance(collector, SyncCollector) else None


def engine_config(config: RlConfig) -> EngineConfig:
    """Engine limits: all samples of a step run at once, and the samples of later steps are queued."""
    samples = config.prompts_per_step * config.samples_per_prompt
    asked = config.eval_prompts * config.evaluate.samples
    return EngineConfig(
        max_num_seqs=max(samples, min(asked, max(samples, config.eval_prompts))),
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
