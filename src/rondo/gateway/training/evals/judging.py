"""Grading of samples by the criteria of an eval."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rondo.gateway.training.evals.requests import grader_spec, threshold_of

if TYPE_CHECKING:
    from rondo.graders.score import Grader

LONGEST_SECONDS = 300.0
"""Limit of one criterion's grader, for one sample."""


@dataclass(frozen=True)
class Criterion:
    name: str
    type: str
    grader: Grader
    threshold: float


def criteria_of(specs: Sequence[Mapping[str, Any]]) -> list[Criterion]:
    """Criteria with their graders. The graders' modules are imported with the first run."""
    from rondo.graders.guarded import guarded
    from rondo.graders.registry import grader_of

    return [
        Criterion(
            str(each["name"]),
            str(each["type"]),
            guarded(grader_of(grader_spec(each), str(each["name"])), LONGEST_SECONDS, str(each["name"])),
            threshold_of(each),
        )
        for each in specs
    ]


async def judge(
    criteria: Sequence[Criterion], item: Mapping[str, Any], sample: Mapping[str, Any]
) -> tuple[str, list[dict[str, Any]]]:
    """Status of the item - pass, fail or error - and the result of each criterion."""
    results = await asyncio.gather(*(_result(each, item, sample) for each in criteria))
    if any(each.get("error") for each in results):
        return "error", results
    return "pass" if all(each["passed"] for each in results) else "fail", results


async def _result(criterion: Criterion, item: Mapping[str, Any], sample: Mapping[str, Any]) -> dict[str, Any]:
    from rondo.graders.score import Sample

    facts = {
        "item": item,
        "tool_calls": sample.get("output_tools") or [],
        "finished": sample.get("finish_reason") != "length",
    }
    score = await criterion.grader.score(Sample("", str(sample.get("output_text") or ""), metadata=facts))
    found = {"name": criterion.name, "type": criterion.type, "sample": None, "score": score.total}
    if score.outcome != "ok":
        error = {"code": f"grader_{score.outcome}", "message": score.detail[:1000]}
        return {**found, "passed": False, "error": error}
    return {**found, "passed": score.total >= criterion.threshold}
