"""Answers sampled during SFT, preference training and pretraining, to a few held-out prompts.

The engine shares the learner's weights and exists only while it samples. Sampling is greedy, so that it draws no random
numbers and equal weights give equal answers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from rondo.base.telemetry.log import get_logger, quiet
from rondo.client.types import SamplingParams
from rondo.data.input.records import Record
from rondo.data.input.texts import text_of
from rondo.engine.config import EngineConfig
from rondo.engine.entrypoints.llm import LLM
from rondo.jobs.job import Job
from rondo.jobs.samples import SHOWN, SampledAnswer, add_samples, forget_samples_after
from rondo.text.tokenizer import Tokenizer
from rondo.train.config import Kind, SamplesConfig, TrainConfig
from rondo.train.learner.learner import Learner
from rondo.train.recipes.data import TrainingSource
from rondo.train.recipes.sft import turn

log = get_logger(__name__)

PROMPT_TOKENS = 16
"""Tokens of a document that pretraining continues."""


@dataclass(frozen=True)
class SamplePrompt:
    tokens: list[int]
    blank: SampledAnswer
    """The entry of `samples.jsonl` without step and answer."""


@dataclass
class AnswerSampler:
    config: SamplesConfig
    steps: int
    tokenizer: Tokenizer
    prompts: Sequence[SamplePrompt]
    job: Job
    last: int = -1
    """Step of the last samples."""

    @classmethod
    def of(
        cls,
        kind: Kind,
        config: TrainConfig,
        tokenizer: Tokenizer,
        held_out: Sequence[TrainingSource],
        sources: Sequence[TrainingSource],
        job: Job,
        learner: Learner,
    ) -> AnswerSampler | None:
        """None if the job has nothing to sample: a reward model scores answers, prepared shards have no records, and a
        sharded model belongs to no single process.
        """
        told = config.samples
        if kind == "reward" or told.every == 0 or learner.mesh is not None or config.learner != "native":
            return None
        records = [record for source in held_out or sources for record in source.records[: told.prompts]]
        prompts = list(_prompts(kind, tokenizer, records[: told.prompts], bool(held_out)))
        limit = learner.model.config.max_positions - 1
        prompts = [prompt for prompt in prompts if 0 < len(prompt.tokens) < limit]
        return cls(told, config.steps, tokenizer, prompts, job) if prompts else None

    def due(self, step: int) -> bool:
        return self.config.due(step, self.steps)

    def take(self, learner: Learner, step: int) -> None:
        """Sample, log and store an answer to each prompt. After an error the job continues without samples."""
        self.last = step
        try:
            with learner.as_left():
                answers = self._answers(learner)
            found = [
                replace(prompt.blank, step=step, answer=answer)
                for prompt, answer in zip(self.prompts, answers, strict=True)
            ]
            add_samples(self.job.path, found)
        except Exception as error:
            log.warning("no further answers are sampled: %s", error)
            self.prompts = ()
            return
        for sample in found[:SHOWN]:
            log.info("step %d: %s", step, sample)

    def finish(self, learner: Learner) -> None:
        """Sample after the last step, if training has ended early."""
        if self.last != learner.step:
            self.take(learner, learner.step)

    def forget_after(self, step: int) -> None:
        self.last = step
        forget_samples_after(self.job.path, step)

    def _answers(self, learner: Learner) -> list[str]:
        if not self.prompts:
            return []
        longest = max(len(prompt.tokens) for prompt in self.prompts) + self.config.max_tokens
        room = min(longest, learner.model.config.max_positions)
        settings = EngineConfig(max_num_seqs=len(self.prompts), max_model_len=room, autotune=False)
        with quiet("rondo.engine.metrics.startup_log"):
            engine = LLM(learner.computing, self.tokenizer, settings)
        try:
            asked = [
                SamplingParams(
                    temperature=0, max_tokens=min(self.config.max_tokens, room - len(prompt.tokens))
                )
                for prompt in self.prompts
            ]
            outputs = engine.generate([prompt.tokens for prompt in self.prompts], asked)
        finally:
            engine.close()
        return [output.outputs[0].text for output in outputs]


def _prompts(
    kind: Kind, tokenizer: Tokenizer, records: Sequence[Record], held_out: bool
) -> Iterator[SamplePrompt]:
    for index, record in enumerate(records):
        expected: str | None
        if kind == "pretrain":
            ids = tokenizer.encode(text_of(tokenizer, record))
            cut = min(PROMPT_TOKENS, len(ids) // 2)
            tokens, shown, expected = ids[:cut], tokenizer.decode(ids[:cut]), tokenizer.decode(ids[cut:])
        else:
            tokens, shown, expected = _asked(tokenizer, record)
        split: Literal["held_out", "train"] = "held_out" if held_out else "train"
        yield SamplePrompt(tokens, SampledAnswer(0, split, index, shown, "", expected))


def _asked(tokenizer: Tokenizer, record: Record) -> tuple[list[int], str, str | None]:
    """Tokens and text of a record's last prompt, and the answer in the record."""
    if "text" in record:
        ids = tokenizer.encode(record["text"])
        cut = min(PROMPT_TOKENS, len(ids) // 2)
        return ids[:cut], tokenizer.decode(ids[:cut]), tokenizer.decode(ids[cut:])
    answer = record.get("completion", record.get("chosen"))
    if "messages" not in record:
        return tokenizer.encode(record["prompt"]), record["prompt"], _content(answer)
    messages = record["messages"]
    if answer is None:
        last = max(i for i, message in enumerate(messages) if message["role"] == "assistant")
        messages, answer = messages[:last], messages[last]
    said = {"role": "assistant", "content": _content(answer) or ""}
    before, _ = turn(tokenizer, messages, said, record.get("tools"))
    shown = _content(messages[-1]) if messages else before
    return tokenizer.encode(before, add_special=False), shown or before, _content(answer)


def _content(answer: Any) -> str | None:
    """Text of an answer: a string, a message, or a list with one message."""
    if isinstance(answer, list):
        answer = answer[0]
    if isinstance(answer, dict):
        answer = answer.get("content")
    return answer if isinstance(answer, str) else None
