"""A collector of OpenTelemetry spans on loopback."""

from __future__ import annotations

import http.server
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest


class Collector(http.server.ThreadingHTTPServer):
    """Takes OTLP over HTTP."""

    def __init__(self) -> None:
        self.got: list[ExportTraceServiceRequest] = []
        collector = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                import gzip

                data = self.rfile.read(int(self.headers["content-length"]))
                if self.headers.get("content-encoding") == "gzip":
                    data = gzip.decompress(data)
                assert self.path == "/v1/traces"
                collector.got.append(ExportTraceServiceRequest.FromString(data))
                self.send_response(200)
                self.send_header("content-length", "0")
                self.end_headers()

            def log_message(self, *args: object) -> None:
                pass

        super().__init__(("127.0.0.1", 0), Handler)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/v1/traces"

    def spans(self, count: int) -> list[Any]:
        for _ in range(3000):
            found = [
                span
                for request in list(self.got)
                for resource in request.resource_spans
                for scope in resource.scope_spans
                for span in scope.spans
            ]
            if len(found) >= count:
                return found
            time.sleep(0.02)
        pytest.fail(f"{len(found)} spans came, and not {count}")


@contextmanager
def collecting() -> Iterator[Collector]:
    server = Collector()
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield server
    server.shutdown()
    server.server_close()
    thread.join(10)


def values(span: Any) -> dict[str, Any]:
    return {each.key: getattr(each.value, each.value.WhichOneof("value")) for each in span.attributes}
