"""The RL loop: prompts -> rollout -> score -> advantage -> pack -> train -> push, and again with the next weights."""

from __future__ import annotations

import copy
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

import numpy as np

from rondo.base.errors import ConfigError
from rondo.client.types import SamplingParams
from rondo.data.packing import Document, Row, Tree, pack
from rondo.engine.config import EngineConfig
from rondo.engine.llm import LLM
from rondo.models import Decoder
from rondo.rl.advantages import Floats, group_advantages, token_weights
from rondo.rl.config import RlConfig
from rondo.rl.objective import policy_loss
from rondo.rl.rollout import Group, evaluate, reward_metrics, rewards, rollout, score
from rondo.rl.tasks import Task
from rondo.text.tokenizer import Tokenizer
from rondo.train.learner import Learner, Metrics
from rondo.train.schedule import learning_rate
from rondo.train.shared_prefix import shares_prefixes
from rondo.weights.directory import Directory
from rondo.weights.in_place import InPlace, Receiver


class Grpo:
    """Engine and learner in one process, over one set of weights."""

    def __init__(self, model: Decoder, tokenizer: Tokenizer, task: Task, config: RlConfig) -> None:
        refuse_unbuilt(config)
        self.tokenizer, self.task, self.config = tokenizer, task, config
        self.max_tokens = config.max_tokens or task.max_tokens
        self.learner = Learner(model, config)
        self.reference = Learner(copy.deepcopy(model), config) if config.kl else None
        self.engine = LLM(self.learner.computing, tokenizer, engine_config(config, self.max_tokens))
        self.weights = InPlace(config.model or "policy", self.learner.shards, Directory())
        self.receivers = [Receiver("engine", self.engine, self.engine.core.model.to_hf)]
        self.sampling = SamplingParams(
            n=config.samples_per_prompt,
            max_tokens=self.max_tokens,
            temperature=config.temperature,
            logprobs=0,
        )

    def step(self) -> Metrics:
        config, at = self.config, self.learner.step
        clock = Clock()
        with clock("rollout"):
            problems = self.task.prompts(config.seed * 1_000_003 + at, config.prompts_per_step)
            groups = rollout(
                self.engine, self.tokenizer, problems, self.sampling, seed=config.seed * 1_000_003 + at
            )
        with clock("score"):
            scores = score(self.task, groups)
            advantages = group_advantages(rewards(scores), "mean" if config.normalise == "mean" else "std")
        with clock("train"):
            rows = self.pack(groups, advantages)
            loss = policy_loss(config)
            valid = sum(len(sample.token_ids) for group in groups for sample in group.samples)
            metrics = self.learner.forward_backward(rows, loss, temperature=config.temperature, valid=valid)
        with clock("push"), self.weights.update(self.engine.weight_version + 1, self.receivers):
            metrics |= self.learner.optim_step(self.learning_rate(at))
        return metrics | reward_metrics(scores) | lengths(groups) | clock.metrics(valid)

    def pack(self, groups: Sequence[Group], advantages: Floats) -> list[Row]:
        """Groups in which all samples earned the same teach nothing and are left out, unless the KL term counts."""
        counts = [len(sample.token_ids) for group in groups for sample in group.samples]
        weights = iter(token_weights(counts, self.config.aggregate, self.max_tokens))
        share = self.config.share_prefix and shares_prefixes(self.learner.model.attention_specs())
        items: list[Document | Tree] = []
        for group, row in zip(groups, advantages, strict=True):
            answers = [
                _answer(sample.token_ids, sample.logprobs or [], float(advantage), next(weights))
                for sample, advantage in zip(group.samples, row, strict=True)
            ]
            if self.config.every_group_counts or np.any(row):
                tree = Tree(group.prompt_ids, answers)
                items += [tree] if share else tree.apart()
        rows = pack(items, self.config.tokens_per_microbatch)
        if self.reference is None:
            return rows
        known = self.reference.logprobs(rows, self.config.temperature)
        return [
            replace(row, columns={**row.columns, "reference_logprobs": logprobs})
            for row, logprobs in zip(rows, known, strict=True)
        ]

    def learning_rate(self, step: int) -> float:
        config = self.config
        return learning_rate(
            step,
            lr=config.lr,
            warmup=config.warmup,
            steps=config.steps,
            decay=config.decay,
            lr_end=config.lr_end,
        )

    def push(self) -> None:
        """Tells the engine that somebody else has written to the weights."""
        with self.weights.update(self.engine.weight_version + 1, self.receivers):
            pass

    def evaluate(self, seed: int = 0) -> Metrics:
        """On held-out prompts, one sample each at temperature 1. Another seed is another set of prompts."""
        return evaluate(
            self.engine, self.tokenizer, self.task, self.config.eval_prompts, self.max_tokens, seed
        )


def refuse_unbuilt(config: RlConfig) -> None:
    for name, built in _BUILT.items():
        if getattr(config, name) not in built:
            said = " or ".join(map(str, built))
            raise ConfigError(
                f"rl.{name}: the loop does {said}, and not {getattr(config, name)}", param=f"rl.{name}"
            )


_BUILT: dict[str, tuple[object, ...]] = {
    "advantage": ("group",),
    "normalise": ("std", "mean"),
    "kl_in": ("loss",),
    "kl_target": (0.0,),
    "overlong": (0.0,),
    "dynamic_sampling": (0,),
    "minibatches": (1,),
    "epochs": (1,),
}


def engine_config(config: RlConfig, max_tokens: int) -> EngineConfig:
    """All samples of a step run at once."""
    return EngineConfig(
        max_num_seqs=max(config.prompts_per_step * config.samples_per_prompt, config.eval_prompts),
        max_queued=config.prompts_per_step * config.samples_per_prompt,
        max_step_tokens=config.tokens_per_microbatch,
        block_size=config.block_size,
        seed=config.seed,
    )


def _answer(tokens: list[int], logprobs: list[float], advantage: float, weight: float) -> Document:
    count = len(tokens)
    columns = {"advantages": [advantage] * count, "sampler_logprobs": logprobs}
    return Document(tokens, [weight] * count, columns)


def lengths(groups: Sequence[Group]) -> Metrics:
    samples = [sample for group in groups for sample in group.samples]
    return {
        "answer_tokens": sum(len(sample.token_ids) for sample in samples) / len(samples),
        "truncated": sum(sample.finish_reason == "length" for sample in samples) / len(samples),
        "weight_version": float(max(sample.weight_versions[-1] for sample in samples)),
    }


@dataclass
class Clock:
    """Seconds by phase."""

    phases: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def __call__(self, phase: str) -> Iterator[None]:
        begin = time.perf_counter()
        yield
        self.phases[phase] = time.perf_counter() - begin

    def metrics(self, tokens: int) -> Metrics:
        total = sum(self.phases.values())
        seconds = {f"seconds/{phase}": value for phase, value in self.phases.items()}
        return {"seconds": total, "tokens_per_second": tokens / total, **seconds}
