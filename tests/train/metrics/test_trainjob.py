"""Progress of a job in the form of Kubeflow Trainer's status server."""

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import torch

from rondo.jobs.job import Job
from rondo.train.config import MetricsConfig
from rondo.train.metrics import trainjob
from rondo.train.metrics.sinks import telling
from support.kubernetes import problems


def test_a_trainjob_has_the_progress_of_its_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    received: list[tuple[str | None, dict[str, object]]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            received.append((self.headers["Authorization"], body))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    (tmp_path / "token").write_text("secret\n")
    (tmp_path / "spec.json").write_text('{"config": {"steps": 4}}')
    monkeypatch.setenv(trainjob.URL, f"http://127.0.0.1:{server.server_port}/status")
    monkeypatch.setenv(trainjob.TOKEN, str(tmp_path / "token"))
    try:
        for rank in (0, 1):
            with telling(MetricsConfig(), Job(tmp_path), torch.device("cpu"), rank=rank) as tell:
                for step in (2, 3, 4):
                    tell(step, {"loss": 1 / step})
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
    token, body = received[-1]
    status = body["trainerStatus"]
    assert isinstance(status, dict)
    assert (token, status["progressPercentage"], status["estimatedRemainingSeconds"]) == (
        "Bearer secret",
        100,
        0,
    )
    assert status["metrics"] == [{"name": "step", "value": "4"}, {"name": "loss", "value": "0.25"}]
    spec = {"runtimeRef": {"name": "torch-distributed"}}
    whole = {"apiVersion": "trainer.kubeflow.org/v1alpha1", "kind": "TrainJob", "metadata": {"name": "a"}}
    assert problems({**whole, "spec": spec, "status": body}) == []


def test_an_absent_server_ends_no_job(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(trainjob.URL, "http://127.0.0.1:9/status")
    monkeypatch.setenv(trainjob.TOKEN, str(tmp_path / "none"))
    status = trainjob.TrainJobStatus(1)
    status.log(1, {})
    status.close()
    assert not status._thread.is_alive()
