"""Evals, runs and output items as OpenAI's API shows them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from rondo.control.objects.eval_runs import StoredItem, StoredRun
from rondo.control.objects.evals import StoredEval
from rondo.gateway.training.evals.requests import shown_config
from rondo.gateway.training.judges import COUNTS
from rondo.gateway.training.shown import seconds


def shown_eval(eval: StoredEval) -> dict[str, Any]:
    return {
        "object": "eval",
        "id": eval.id,
        "name": eval.name,
        "created_at": seconds(eval.created),
        "data_source_config": shown_config(eval.config),
        "testing_criteria": eval.graders,
        "metadata": None if eval.metadata is None else json.loads(eval.metadata),
    }


def shown_run(run: StoredRun, base_url: str) -> dict[str, Any]:
    counts: dict[str, list[int]] = json.loads(run.by_criterion)
    usage: dict[str, dict[str, int]] = json.loads(run.usage)
    return {
        "object": "eval.run",
        "id": run.id,
        "eval_id": run.eval,
        "name": run.name,
        "created_at": seconds(run.created),
        "status": run.state,
        "model": run.model,
        "data_source": run.data,
        "report_url": f"{base_url}v1/evals/{run.eval}/runs/{run.id}",
        "result_counts": {
            "total": run.total,
            "passed": run.passed,
            "failed": run.failed,
            "errored": run.graded - run.passed - run.failed,
        },
        "per_testing_criteria_results": [
            {"testing_criteria": name, "passed": passed, "failed": failed}
            for name, (passed, failed) in counts.items()
        ],
        "per_model_usage": [
            {"model_name": model} | {name: numbers.get(name, 0) for name in COUNTS}
            for model, numbers in usage.items()
        ],
        "error": None if run.error is None else json.loads(run.error),
        "metadata": None if run.metadata is None else json.loads(run.metadata),
    }


def shown_item(item: StoredItem, run: StoredRun) -> dict[str, Any]:
    sample: dict[str, Any] = json.loads(item.sample or "{}")
    params = run.data.get("sampling_params") or {}
    limit = params.get("max_completion_tokens") or params.get("max_completions_tokens")
    answer = {"role": "assistant", "content": sample.get("output_text", "")}
    if tools := sample.get("output_tools"):
        answer["tool_calls"] = tools
    return {
        "object": "eval.run.output_item",
        "id": item.id,
        "created_at": seconds(item.created),
        "run_id": run.id,
        "eval_id": run.eval,
        "status": item.status,
        "datasource_item_id": item.place,
        "datasource_item": json.loads(item.item),
        "results": json.loads(item.results or "[]"),
        "sample": {
            "input": [_message(each) for each in sample.get("input") or ()],
            "output": [] if sample.get("error") else [answer],
            "model": sample.get("model") or run.model,
            "finish_reason": sample.get("finish_reason", "stop"),
            "usage": sample.get("usage") or dict.fromkeys(COUNTS[1:], 0),
            "error": sample.get("error"),
            "max_completion_tokens": limit,
            "temperature": params.get("temperature"),
            "top_p": params.get("top_p"),
            "seed": params.get("seed"),
        },
    }


def _message(message: Mapping[str, Any]) -> dict[str, Any]:
    return {"role": message.get("role"), "content": _text(message.get("content"))}


def _text(content: str | Sequence[Any] | None) -> str:
    if content is None or isinstance(content, str):
        return content or ""
    parts = (part.get("text") for part in content if isinstance(part, dict))
    return "\n".join(part for part in parts if isinstance(part, str))
