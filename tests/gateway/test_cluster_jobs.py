"""OpenAI's and ScalarLM's jobs in a cluster of the test: default resources, a scheduler that is down, restarts."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from gateway.stub import RunningGateway, Stub, gateway_of, served
from gateway.test_scalarlm_training import archive, packed
from support.kubernetes import FakeCluster, fake_cluster
from support.waiting import wait_until

GPUS = {"metadata": {"name": "gpu-1"}, "status": {"allocatable": {"cpu": "8", "nvidia.com/gpu": "8"}}}
CPUS = {"metadata": {"name": "cpu-1"}, "status": {"allocatable": {"cpu": "8"}}}
RECORD = b'{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}\n'


@pytest.fixture
def cluster() -> Iterator[FakeCluster]:
    with fake_cluster() as found:
        yield found


@contextmanager
def clustered(
    cluster: FakeCluster, folder: Path, monkeypatch: pytest.MonkeyPatch, **jobs: Any
) -> Iterator[RunningGateway]:
    monkeypatch.setenv("RONDO_HOME", str(folder / "home"))
    kubernetes = {"api": cluster.url, "account": "/nowhere"}
    told = {"poll_seconds": 0.05, "kubernetes": kubernetes, "launcher": "kubernetes", **jobs}
    with served(Stub(["toy"])) as stub, gateway_of([stub.url], folder, jobs=told) as running:
        yield running


def fine_tune(gateway: RunningGateway, seed: int = 1) -> dict[str, Any]:
    file = httpx.post(
        f"{gateway.url}/v1/files", files={"file": ("a.jsonl", RECORD)}, data={"purpose": "fine-tune"}
    ).json()
    body = {"model": "toy", "training_file": file["id"], "suffix": "mine", "seed": seed}
    answer = httpx.post(f"{gateway.url}/v1/fine_tuning/jobs", json=body, timeout=60)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def resources(gateway: RunningGateway, id: str) -> dict[str, int]:
    found: dict[str, int] = httpx.get(f"{gateway.url}/v1/jobs/{id}", timeout=60).json()["resources"]
    return found


def scalarlm(gateway: RunningGateway, data: bytes | None = None, **arguments: Any) -> httpx.Response:
    files = {"file": ("dataset", data or packed())}
    params = {"params": json.dumps(arguments)}
    return httpx.post(f"{gateway.url}/v1/megatron/train", files=files, data=params, timeout=60)


def test_a_job_of_openais_api_requests_a_gpu_where_the_launcher_has_some(
    cluster: FakeCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with clustered(cluster, tmp_path, monkeypatch) as gateway:
        cluster.nodes = [CPUS]
        assert resources(gateway, fine_tune(gateway)["id"]) == {}
        cluster.nodes = [CPUS, GPUS]
        assert resources(gateway, fine_tune(gateway, 2)["id"]) == {"gpus": 1}
        limits = {"nvidia.com/gpu": "1"}
        wait_until(
            lambda: any(
                each["spec"]["trainer"]["resourcesPerNode"].get("limits") == limits
                for each in cluster.objects.values()
            )
        )
        cluster.refusal = 500
        assert resources(gateway, fine_tune(gateway, 3)["id"]) == {"gpus": 1}
        cluster.refusal = None
    with clustered(cluster, tmp_path, monkeypatch, fine_tuning_gpus=4) as gateway:
        assert resources(gateway, fine_tune(gateway, 4)["id"]) == {"gpus": 4}


def test_a_restarted_job_has_its_launcher_its_api_and_its_name(
    cluster: FakeCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs = {"launcher": "local", "slots": 0, "launchers": ["kubernetes"]}
    with clustered(cluster, tmp_path, monkeypatch) as gateway:
        first = fine_tune(gateway)["id"]
        wait_until(lambda: bool(cluster.objects))
        row = gateway.gateway.training.book.cancel(first).result()
    with clustered(cluster, tmp_path, monkeypatch, **jobs) as gateway:
        wait_until(lambda: not gateway.gateway.training.book.get(first).result().launched)
        answer = httpx.post(f"{gateway.url}/v1/megatron/restart/{first}", timeout=60)
        assert answer.status_code == 200, answer.text
        again = gateway.gateway.training.book.get(answer.json()["job_status"]["job_id"]).result()
        assert (again.launcher, again.id.partition("-")[0], again.result) == (
            "kubernetes",
            "ftjob",
            row.result,
        )
        assert httpx.get(f"{gateway.url}/v1/fine_tuning/jobs/{again.id}", timeout=60).status_code == 200
        queue = httpx.get(f"{gateway.url}/slurm/squeue", timeout=60).json()["squeue_output"]
        (id,) = [line.split()[0] for line in queue.splitlines()[1:]]
        cancelled = httpx.post(f"{gateway.url}/slurm/cancel/{id}", timeout=60)
        assert (cancelled.status_code, cancelled.json()["job_id"]) == (200, again.id)


def test_scalarlms_jobs_depend_on_the_default_launcher_alone(
    cluster: FakeCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster.nodes = [GPUS]
    jobs = {"launcher": "local", "launchers": ["kubernetes"]}
    with clustered(cluster, tmp_path, monkeypatch, **jobs) as gateway:
        assert httpx.get(f"{gateway.url}/v1/megatron/gpu_count", timeout=60).json() == {"gpu_count": 0}
        cluster.refusal = 500
        for arguments in ({}, {"gpus": 0}, {"gpus": 1}):
            answer = scalarlm(gateway, **arguments)
            assert answer.status_code == 200, answer.text
            assert resources(gateway, answer.json()["job_status"]["job_id"]) == {}
        status = httpx.get(f"{gateway.url}/slurm/status", timeout=60).json()
        assert (status["status"], status["resources"]) == ("active", {"gpu_count": 0, "node_count": 1})


def test_scalarlms_jobs_on_several_nodes(
    cluster: FakeCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster.nodes = [GPUS, GPUS]
    with clustered(cluster, tmp_path, monkeypatch) as gateway:
        answer = scalarlm(gateway, nodes=2, gpus=4)
        assert answer.status_code == 200, answer.text
        id = answer.json()["job_status"]["job_id"]
        assert resources(gateway, id) == {"gpus": 8, "ranks": 8, "nodes": 2}
        wait_until(lambda: bool(cluster.objects))
        (found,) = cluster.objects.values()
        trainer = found["spec"]["trainer"]
        assert (trainer["numNodes"], trainer["resourcesPerNode"]["limits"]) == (2, {"nvidia.com/gpu": "4"})
        many = scalarlm(gateway, nodes=2, gpus=9)
        assert (many.status_code, many.json()["error"]["param"]) == (422, "gpus")
        program = archive(("ml/cray_megatron/main.py", b"print(1)"))
        one = scalarlm(gateway, program, nodes=2)
        assert (one.status_code, one.json()["error"]["param"]) == (422, "nodes")
        cluster.refusal = 500
        assert scalarlm(gateway, gpus=0, max_steps=7).status_code == 200
        status = httpx.get(f"{gateway.url}/slurm/status", timeout=60).json()
        assert status["status"] == "inactive"
        assert "refused by the test" in status["queue"]["error_message"]
        cluster.refusal = None
