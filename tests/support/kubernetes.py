"""An API server of the test for TrainJobs and JobSets. It refuses what the published schemas do not allow, unknown
fields included, as a real one does with strict field validation."""

from __future__ import annotations

import contextlib
import json
import re
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import jsonschema_rs

SCHEMAS = Path(__file__).parent / "schemas"
"""Schemas of the CustomResourceDefinitions of Kubeflow Trainer 8c0f505 and JobSet 08dfbdf, without descriptions."""
LABEL = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")


def strict(schema: Any) -> Any:
    """The schema without fields that it does not name."""
    if isinstance(schema, list):
        return [strict(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    found = {name: strict(value) for name, value in schema.items()}
    named = isinstance(found.get("properties"), dict) and found.get("type") == "object"
    if named and not found.get("x-kubernetes-preserve-unknown-fields"):
        found.setdefault("additionalProperties", False)
    return found


def problems(manifest: dict[str, Any]) -> list[str]:
    """Violations of the schema of the manifest's kind."""
    schema = strict(json.loads((SCHEMAS / f"{manifest['kind'].lower()}.json").read_text()))
    found = [
        f"{'.'.join(map(str, error.instance_path))}: {error.message}"
        for error in jsonschema_rs.validator_for(schema).iter_errors(manifest)
    ]
    if not LABEL.fullmatch(manifest["metadata"]["name"]):
        found.append("metadata.name is no DNS label")
    return found


@dataclass
class FakeCluster:
    kinds: set[str] = field(default_factory=lambda: {"trainjobs", "jobsets"})
    objects: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Objects by path."""
    nodes: list[dict[str, Any]] = field(default_factory=list)
    pods: list[dict[str, Any]] = field(default_factory=list)
    secrets: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Secrets by path."""
    deleted: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    refusal: int | None = None
    url: str = ""

    def answer(self, method: str, path: str, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        if self.refusal is not None:
            return self.refusal, {"message": "refused by the test"}
        if path == "/api/v1/nodes":
            return 200, {"items": self.nodes}
        if "/pods" in path and method == "GET":
            return 200, {"items": self.pods}
        if "/pods" in path:
            self.deleted.append((path, body))
            return 200, {}
        secret = "/secrets" in path
        if not secret and path.split("/")[6] not in self.kinds:
            return 404, {"message": "the server could not find the requested resource"}
        objects = self.secrets if secret else self.objects
        if method == "POST":
            return self._create(objects, path, body)
        if path not in objects:
            return 404, {"message": "not found"}
        if method == "DELETE":
            self.deleted.append((path, body))
            objects.pop(path)
            return 200, {}
        return 200, objects[path]

    def _create(
        self, objects: dict[str, dict[str, Any]], path: str, body: dict[str, Any]
    ) -> tuple[int, dict[str, Any]]:
        if wrong := problems(body):
            return 422, {"message": "; ".join(wrong)}
        place = f"{path}/{body['metadata']['name']}"
        if place in objects:
            return 409, {"message": "already exists"}
        objects[place] = body
        return 201, body

    def say(self, **status: Any) -> None:
        """Sets the status of the only object."""
        (found,) = self.objects.values()
        found["status"] = status


@contextlib.contextmanager
def fake_cluster() -> Iterator[FakeCluster]:
    found = FakeCluster()

    class Handler(BaseHTTPRequestHandler):
        def answer(self) -> None:
            text = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            status, body = found.answer(self.command, self.path.partition("?")[0], json.loads(text or b"{}"))
            data = json.dumps(body).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        do_GET = do_POST = do_DELETE = answer

        def log_message(self, *arguments: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    found.url = f"http://127.0.0.1:{server.server_port}"
    try:
        yield found
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
