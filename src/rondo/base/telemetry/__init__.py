"""Observability: structured logs, Prometheus metrics, OpenTelemetry traces and per-request statistics.

Metrics have the prefix `rondo:` and one registry a process. Traces need the extra `otel`.
"""
