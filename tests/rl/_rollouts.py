"""Rollouts made by hand, for what reads them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rondo.graders import Score
from rondo.rl.rollout.types import Rollout, SampleGroup
from rondo.rl.tasks.types import Problem


def judged(total: float, **parts: float) -> Score:
    return Score("ok", total, parts)


def said(text: str, score: Score | None = None, **changes: Any) -> Rollout:
    """A token a character."""
    count = len(text)
    facts: dict[str, Any] = {
        "token_ids": [ord(c) for c in text],
        "sampled": [True] * count,
        "logprobs": [-(i + 1) / 8 for i in range(count)],
        "versions": [3] * count,
        "text": text,
        "finish_reason": "stop",
        "score": score,
    }
    return Rollout(**(facts | changes))


def asked(question: str, samples: Sequence[Rollout]) -> SampleGroup:
    return SampleGroup(Problem(question, {"word": question}), [ord(c) for c in question], list(samples))


def equally(groups: Sequence[SampleGroup], advantage: float = 0.5) -> list[list[list[float]]]:
    """That advantage for every token of every sample."""
    return [
        [[advantage] * sum(len(piece.token_ids) for piece in sample.pieces) for sample in group.samples]
        for group in groups
    ]
