"""OpenAI's `text_similarity`: similarity of two texts by a common metric."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal, get_args

from rondo.base.errors import ConfigError
from rondo.graders.definition.templates import NotInOutput, template
from rondo.graders.extras import needs
from rondo.graders.judges.endpoint import Endpoint
from rondo.graders.processes import pool
from rondo.graders.rules import overlap
from rondo.graders.score import Sample, Score

Metric = Literal[
    "fuzzy_match",
    "bleu",
    "gleu",
    "meteor",
    "cosine",
    "rouge_1",
    "rouge_2",
    "rouge_3",
    "rouge_4",
    "rouge_5",
    "rouge_l",
]

SHORT = 20_000
"""Maximum total length for a comparison in this process; longer texts are compared in the pool, with a limit."""
SECONDS = 10.0

_MEASURES: dict[str, Callable[[str, str], float]] = {
    "fuzzy_match": overlap.fuzzy,
    "bleu": overlap.bleu,
    "gleu": overlap.gleu,
    **{f"rouge_{n}": partial(overlap.rouge, n) for n in range(1, 6)},
    "rouge_l": overlap.rouge_l,
}


@dataclass(frozen=True)
class TextSimilarity:
    """Score from 0 to 1. `cosine` requests embeddings from an endpoint: `model` and `endpoint` apply to it alone."""

    input: str
    reference: str
    evaluation_metric: Metric
    model: str = ""
    endpoint: Endpoint = field(default_factory=Endpoint)

    def __post_init__(self) -> None:
        if self.evaluation_metric not in get_args(Metric):
            raise ConfigError(
                f"evaluation_metric is {self.evaluation_metric!r}; it must be one of {', '.join(get_args(Metric))}.",
                param="evaluation_metric",
            )
        if (self.evaluation_metric == "cosine") != bool(self.model):
            raise ConfigError(
                "cosine, and nothing else, needs `model`: the name of the embedding model to ask.",
                param="model",
            )
        if self.evaluation_metric == "meteor":
            needs("nltk")
        template(self.input, "input")
        template(self.reference, "reference")

    def check_sample(self, sample: Sample) -> None:
        template(self.input, "input").check(sample)
        template(self.reference, "reference").check(sample)

    async def score(self, sample: Sample) -> Score:
        try:
            given = template(self.input, "input").fill(sample)
            reference = template(self.reference, "reference").fill(sample)
        except NotInOutput as error:
            return error.score()
        try:
            return Score("ok", await self._compare(given, reference))
        except TimeoutError as error:
            return Score("timeout", 0.0, detail=str(error))

    async def _compare(self, given: str, reference: str) -> float:
        metric = self.evaluation_metric
        if metric == "cosine":
            return await self._cosine(given, reference)
        if metric == "meteor" or len(given) + len(reference) > SHORT:
            where = f"{__name__}:measure"
            return float(await pool.call(where, metric, given, reference, seconds=SECONDS))
        return measure(metric, given, reference)

    async def _cosine(self, given: str, reference: str) -> float:
        if not given.strip() or not reference.strip():  # an empty text has no embedding
            return float(given.strip() == reference.strip())
        a, b = await self.endpoint.embed(self.model, [given, reference])
        norms = math.hypot(*a) * math.hypot(*b)
        return sum(x * y for x, y in zip(a, b, strict=True)) / norms if norms else 0.0


def measure(metric: str, given: str, reference: str) -> float:
    """All metrics except `cosine`."""
    return _meteor(given, reference) if metric == "meteor" else _MEASURES[metric](given, reference)


def _meteor(given: str, reference: str) -> float:
    """METEOR of nltk, with matches of words or their stems. Synonyms need WordNet, which no package includes."""
    from nltk.translate.meteor_score import single_meteor_score

    return float(single_meteor_score(overlap.words(reference), overlap.words(given), wordnet=_NoSynonyms()))


class _NoSynonyms:
    def synsets(self, word: str) -> list[Any]:
        return []
