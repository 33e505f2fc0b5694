"""OpenAI's grader routes: validate a grader, and run it on one sample."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any

from fastapi import APIRouter, Request
from pydantic import BaseModel, ConfigDict

from rondo.base.errors import InvalidRequest, Unavailable
from rondo.gateway.routes.security import JobsKey
from rondo.gateway.routes.training.fine_tuning import training_of
from rondo.gateway.training.graders import check_grader
from rondo.gateway.training.judges import Judges

if TYPE_CHECKING:
    from rondo.graders.score import Grader, Sample, Score

router = APIRouter(prefix="/v1/fine_tuning/alpha/graders", tags=["fine-tuning"])
FLAGS = (
    *(
        "formula_parse_error",
        "sample_parse_error",
        "truncated_observation_error",
        "unresponsive_reward_error",
    ),
    *("invalid_variable_error", "other_error", "python_grader_server_error", "python_grader_runtime_error"),
    *("model_grader_server_error", "model_grader_refusal_error", "model_grader_parse_error"),
)
DETAILS = (
    "python_grader_server_error_type",
    "python_grader_runtime_error_details",
    "model_grader_server_error_details",
)


class GraderToValidate(BaseModel):
    model_config = ConfigDict(extra="forbid")
    grader: dict[str, Any]


class GraderToRun(GraderToValidate):
    model_sample: str
    item: dict[str, Any] | None = None


@router.post("/validate")
async def validate_grader(request: Request, body: GraderToValidate, key: JobsKey) -> dict[str, Any]:
    """The grader, if it is valid."""
    grader = training_of(request).completed(body.grader)
    await asyncio.to_thread(check_grader, grader)
    return {"grader": grader}


@router.post("/run")
async def run_grader(request: Request, body: GraderToRun, key: JobsKey) -> dict[str, Any]:
    """The reward of a sample, and the rewards of the grader's parts."""
    from rondo.graders.registry import grader_of
    from rondo.graders.score import Sample

    spec = training_of(request).completed(body.grader)
    await asyncio.to_thread(check_grader, spec)
    grader = await asyncio.to_thread(grader_of, spec)
    begun = time.monotonic()
    sample = Sample("", body.model_sample, metadata={"item": body.item or {}, **(body.item or {})})
    judges: Judges = request.app.state.judges
    with judges.of(key) as usage:
        score = await _score(grader, sample)
    tokens = sum(counts["total_tokens"] for counts in usage.values())
    return {
        "reward": score.total,
        "sub_rewards": dict(score.parts),
        "model_grader_token_usage_per_model": {model: dict(counts) for model, counts in usage.items()},
        "metadata": {
            "name": str(body.grader.get("name", body.grader.get("type", ""))),
            "type": str(body.grader.get("type", "")),
            "errors": _errors(score),
            "execution_time": round(time.monotonic() - begun, 6),
            "scores": dict(score.parts),
            "token_usage": tokens if usage else None,
            "sampled_model_name": body.grader.get("model"),
        },
    }


async def _score(grader: Grader, sample: Sample) -> Score:
    """The score; a missing field of the item and a judge that does not answer are failures of the grader."""
    from rondo.graders.score import Score, check_gradable

    try:
        check_gradable(grader, sample)
        return await grader.score(sample)
    except InvalidRequest as error:
        if not (error.param or "").startswith("item"):
            raise
        return Score("error", 0.0, detail=error.message, faults={"invalid_variable_error": error.message})
    except Unavailable as error:
        return Score("error", 0.0, detail=error.message, faults={"model_grader_server_error": error.message})


def _errors(score: Score) -> dict[str, Any]:
    """OpenAI's flags and details."""
    errors: dict[str, Any] = dict.fromkeys(FLAGS, False) | dict.fromkeys(DETAILS)
    for fault, detail in score.faults.items():
        errors[fault] = True
        if f"{fault}_details" in errors:
            errors[f"{fault}_details"] = detail
    if "python_grader_server_error" in score.faults:
        errors["python_grader_server_error_type"] = "sandbox"
    if score.outcome == "timeout" and not score.faults:
        errors["unresponsive_reward_error"] = True
    elif score.outcome != "ok" and not score.faults:
        errors["other_error"] = True
    return errors
