"""Request statistics that the engine records once a request's reader is done."""

from __future__ import annotations

from collections.abc import Sequence

from rondo.base.telemetry.account import RequestStats, SampleStats
from rondo.client.types import GenerateRequest
from rondo.engine.schedule.request import Request


def record_request(
    account: RequestStats, request: GenerateRequest, samples: Sequence[Request], model: str
) -> None:
    params = request.sampling
    for sample in samples:
        account.samples.append(
            SampleStats(
                id=request.id,
                model=request.adapter or model,
                prompt_tokens=sample.prompt_length,
                cached_tokens=max(sample.first_cached, 0),
                output_tokens=len(sample.weight_versions),
                finish_reason="error" if sample.error else sample.finish_reason or _cut(sample),
                added=sample.added_at,
                started=sample.started_at,
                first=sample.first_at,
                last=sample.last_at,
                n=params.n,
                max_tokens=params.max_tokens,
                temperature=params.temperature,
                top_p=params.top_p,
            )
        )


def _cut(sample: Request) -> str:
    """Finish reason of a sample that its reader ended, at a stop string or by leaving, before the engine has processed
    it."""
    return "stop" if sample.stop_reason is not None else "abort"
