"""Evaluation of a model: loss on held-out records, accuracy on multiple-choice tasks, and generated answers."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from rondo.base.errors import ConfigError
from rondo.client.types import SamplingParams
from rondo.data.batching.packing import Document, PackedRow, Tree, pack
from rondo.engine.config import EngineConfig
from rondo.engine.entrypoints.llm import LLM
from rondo.graders import Sample
from rondo.text.tokenizer import Tokenizer
from rondo.train.config import EvaluateConfig
from rondo.train.evaluation.evaluator import Evaluator, Metrics
from rondo.train.evaluation.tasks import MultipleChoice, Question, read_tasks
from rondo.train.learner.shared_prefix import shares_prefixes
from rondo.train.losses.objective import Objective

PREFIX = "evaluate/"
SIZES = ("tokens", "examples")
"""Metrics with the same value in all evaluations, which are omitted."""
AT_ONCE = 64
"""Limit of concurrent requests to the engine."""
T = TypeVar("T")


@dataclass(frozen=True)
class HeldOut:
    """Held-out records, and the loss to measure on them."""

    rows: Sequence[PackedRow]
    objective: Objective

    def measure(self, evaluator: Evaluator) -> Metrics:
        asked = self.objective(evaluator, own_share(evaluator, self.rows))
        found = asked.told(evaluator.measure(asked.rows, asked.loss))
        return {name: value for name, value in found.items() if name not in SIZES}


@dataclass(frozen=True)
class Evaluation:
    tokenizer: Tokenizer
    budget: int
    """Tokens in a row."""
    max_tokens: int
    held_out: HeldOut | None = None
    choices: Sequence[MultipleChoice] = ()
    questions: Sequence[Question] = ()

    @classmethod
    def of(
        cls,
        config: EvaluateConfig,
        tokenizer: Tokenizer,
        budget: int,
        held_out: HeldOut | None,
        *,
        divided: bool = False,
    ) -> Evaluation | None:
        """Evaluation according to the config; None if it has no data or tasks. `divided`: no process has the whole
        model.
        """
        if held_out is None and not config.tasks:
            return None
        tasks = read_tasks(config.tasks, tokenizer) if config.tasks else []
        choices = [task for task in tasks if isinstance(task, MultipleChoice)]
        questions = [task for task in tasks if isinstance(task, Question)]
        if questions and divided:
            raise ConfigError(
                "generation tasks need the whole model in one process, and it is sharded over ranks or belongs to "
                "Megatron-Core: evaluate the job's export with `rondo evaluate`",
                param="train.evaluate.tasks",
            )
        return cls(tokenizer, budget, config.max_tokens, held_out, choices, questions)

    def __call__(self, evaluator: Evaluator) -> Metrics:
        found: Metrics = {} if self.held_out is None else self.held_out.measure(evaluator)
        found |= choose(evaluator, self.choices, self.budget)
        if self.questions:
            found |= self._ask(evaluator)
        return {PREFIX + name: value for name, value in found.items()}

    def _ask(self, evaluator: Evaluator) -> Metrics:
        """Generates and grades answers. The engine shares the evaluator's weights. It exists only during the
        evaluation, so that it takes no memory from training otherwise.
        """
        longest = max(len(question.prompt) for question in self.questions) + self.max_tokens
        room = min(longest, evaluator.model.config.max_positions)
        settings = EngineConfig(
            max_num_seqs=min(AT_ONCE, len(self.questions)),
            max_queued=len(self.questions),
            max_model_len=room,
            autotune=False,
        )
        engine = LLM(evaluator.computing, self.tokenizer, settings)
        try:
            asked = [
                SamplingParams(temperature=0, max_tokens=self.max_tokens, stop=q.stop) for q in self.questions
            ]
            outputs = engine.generate([question.prompt for question in self.questions], asked)
        finally:
            engine.close()
        return asyncio.run(grade(self.questions, [output.outputs[0].text for output in outputs]))


async def grade(questions: Sequence[Question], answers: Sequence[str]) -> Metrics:
    """Mean score of each task, as `accuracy`."""
    right: dict[str, list[float]] = defaultdict(list)
    for question, answer in zip(questions, answers, strict=True):
        score = await question.matcher.score(Sample(question.text, answer, question.right))
        right[question.task].append(score.total)
    return {f"{task}/accuracy": sum(own) / len(own) for task, own in right.items()}


def choose(evaluator: Evaluator, choices: Sequence[MultipleChoice], budget: int) -> Metrics:
    """`accuracy` of each task: how often the correct answer has the highest likelihood; `accuracy_by_length`: the same
    for the likelihood per character, which does not penalize long answers.
    """
    own = own_share(evaluator, choices)
    found = log_likelihoods(evaluator, own, budget)
    tally: dict[str, list[float]] = {choice.task: [0.0, 0.0, 0.0] for choice in choices}
    for choice, sums in zip(own, found, strict=True):
        by_length = sums / np.asarray(choice.lengths)
        right = [1, int(sums.argmax()) == choice.right, int(by_length.argmax()) == choice.right]
        tally[choice.task] = [a + b for a, b in zip(tally[choice.task], right, strict=True)]
    metrics: Metrics = {}
    for task, counted in tally.items():
        count, right_ones, right_by_length = evaluator.totals(*counted)
        metrics[f"{task}/accuracy"] = right_ones / count
        metrics[f"{task}/accuracy_by_length"] = right_by_length / count
    return metrics


def log_likelihoods(
    evaluator: Evaluator, choices: Sequence[MultipleChoice], budget: int
) -> list[NDArray[np.float64]]:
    """Log-likelihood of each answer after its prompt. The prompt is computed once for all answers, if the model
    supports it.
    """
    cut = evaluator.mesh is not None and evaluator.mesh.degrees.cp > 1  # a ring has no shared prefixes
    share = shares_prefixes(evaluator.model.attention_specs()) and not cut
    items: list[Document | Tree] = []
    count = 0
    for choice in choices:
        answers = [
            Document(ids, [1.0] * len(ids), facts={"number": count + i})
            for i, ids in enumerate(choice.answers)
        ]
        tree = Tree(choice.prompt, answers)
        items += [tree] if share else tree.apart()
        count += len(answers)
    rows = pack(items, budget)
    sums = np.empty(count)
    for row, own in zip(rows, evaluator.document_logprobs(rows), strict=True):
        sums[row.facts["number"].astype(np.int64)] = own
    ends = np.cumsum([len(choice.answers) for choice in choices])
    return np.split(sums, ends[:-1]) if choices else []


def own_share(evaluator: Evaluator, items: Sequence[T]) -> Sequence[T]:
    """This rank's share of the items."""
    mesh = evaluator.mesh
    return items if mesh is None else items[mesh.dp_rank :: mesh.degrees.dp]
