"""Requests as OpenTelemetry spans, sent over OTLP: one a request, and in it the queue, the prompt and the answer.

The engine's spans are made when a request has ended, out of the times in its account: nothing is added to its path. A
gateway begins its span with the request, because the engine's span is a child of it.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rondo.base.errors import ConfigError, MissingExtra
from rondo.base.telemetry.account import RequestStats, SampleStats

if TYPE_CHECKING:
    from opentelemetry.sdk.trace.export import SpanExporter
    from opentelemetry.trace import Span

NANO = 10**9


def check_traces(endpoint: str) -> None:
    """Early check for callers with long work before the first trace."""
    if not endpoint.startswith(("http://", "https://")):
        raise ConfigError(
            f"{endpoint} is not a URL for OTLP over HTTP, such as http://127.0.0.1:4318/v1/traces.",
            param="otlp_traces_endpoint",
        )
    try:
        import opentelemetry.exporter.otlp.proto.http.trace_exporter
        import opentelemetry.sdk.trace  # noqa: F401
    except ImportError:
        raise MissingExtra("opentelemetry", "otel") from None


class Tracer:
    """`endpoint` takes OTLP over HTTP, such as http://127.0.0.1:4318/v1/traces."""

    def __init__(self, endpoint: str, exporter: SpanExporter | None = None) -> None:
        check_traces(endpoint)
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        name = {} if "OTEL_SERVICE_NAME" in os.environ else {"service.name": "rondo"}
        self._provider = TracerProvider(resource=Resource.create(name))
        self._provider.add_span_processor(BatchSpanProcessor(exporter or OTLPSpanExporter(endpoint=endpoint)))
        self._tracer = self._provider.get_tracer("rondo")
        self._propagator = TraceContextTextMapPropagator()

    def begin(self, name: str, headers: Mapping[str, str], began: float) -> OpenSpan:
        """A span in the caller's trace. `began` is of `time.time`."""
        from opentelemetry.trace import SpanKind, set_span_in_context

        context = self._propagator.extract(dict(headers))
        span = self._tracer.start_span(name, context, SpanKind.SERVER, start_time=_nano(began))
        sent: dict[str, str] = {}
        self._propagator.inject(sent, set_span_in_context(span))
        return OpenSpan(span, sent)

    def record(
        self, account: RequestStats, headers: Mapping[str, str], ended: float, attributes: Mapping[str, Any]
    ) -> None:
        """`headers` may have the caller's `traceparent` and `tracestate`; `ended` is of `time.monotonic`."""
        from opentelemetry.trace import SpanKind, Status, StatusCode, set_span_in_context

        span = self._tracer.start_span(
            "llm_request",
            context=self._propagator.extract(dict(headers)),
            kind=SpanKind.SERVER,
            start_time=_nano(account.opened_at),
            attributes={**attributes, **_of_request(account, ended)},
        )
        inside = set_span_in_context(span)
        for index, sample in enumerate(account.samples):
            for name, began, over in _phases(sample):
                self._tracer.start_span(
                    name,
                    context=inside,
                    start_time=_nano(account.wall(began)),
                    attributes={"gen_ai.response.id": sample.id, "rondo.sample": index},
                ).end(_nano(account.wall(over)))
        if attributes.get("http.response.status_code", 200) >= 500:
            span.set_status(Status(StatusCode.ERROR))
        span.end(_nano(account.wall(ended)))


@dataclass(frozen=True)
class OpenSpan:
    """A span that has not ended. `headers` continue its trace in another server."""

    span: Span
    headers: Mapping[str, str]

    def end(self, attributes: Mapping[str, Any], failed: bool) -> None:
        from opentelemetry.trace import Status, StatusCode

        self.span.set_attributes(dict(attributes))
        if failed:
            self.span.set_status(Status(StatusCode.ERROR))
        self.span.end()


def _phases(sample: SampleStats) -> list[tuple[str, float, float]]:
    phases = []
    if sample.started:
        phases.append(("queue", sample.added, sample.started))
    if sample.first:
        phases += [("prefill", sample.started, sample.first), ("decode", sample.first, sample.last)]
    return phases


def _of_request(account: RequestStats, ended: float) -> dict[str, Any]:
    """Attributes under OpenTelemetry's names for generative AI; latencies under vLLM's names."""
    found: dict[str, Any] = {
        "gen_ai.provider.name": "rondo",
        "gen_ai.request.id": account.request_id,
        "gen_ai.latency.e2e": ended - account.opened,
    }
    if not account.samples:
        return found
    first = account.samples[0]
    prompt, output = usage(account.samples)
    found |= {
        "gen_ai.request.model": first.model,
        "gen_ai.response.model": first.model,
        "gen_ai.response.id": first.id,
        "gen_ai.request.n": first.n,
        "gen_ai.request.choice.count": first.n,
        "gen_ai.request.temperature": first.temperature,
        "gen_ai.request.top_p": first.top_p,
        "gen_ai.response.finish_reasons": [sample.finish_reason for sample in account.samples],
        "gen_ai.usage.input_tokens": prompt,
        "gen_ai.usage.output_tokens": output,
        "gen_ai.usage.prompt_tokens": prompt,
        "gen_ai.usage.completion_tokens": output,
        "gen_ai.usage.num_sequences": len(account.samples),
        "gen_ai.latency.time_in_queue": first.queue,
        "gen_ai.latency.time_to_first_token": first.to_first,
        "gen_ai.latency.time_in_model_prefill": max(0.0, first.to_first - first.queue),
        "gen_ai.latency.time_in_model_decode": first.decode,
        "gen_ai.latency.time_in_model_inference": max(0.0, first.to_first - first.queue) + first.decode,
    }
    if first.max_tokens is not None:
        found["gen_ai.request.max_tokens"] = first.max_tokens
    return found


def usage(samples: Sequence[SampleStats]) -> tuple[int, int]:
    """Tokens in, each prompt once, and tokens out."""
    prompts = {sample.id: sample.prompt_tokens for sample in samples}
    return sum(prompts.values()), sum(sample.output_tokens for sample in samples)


def _nano(seconds: float) -> int:
    return int(seconds * NANO)
