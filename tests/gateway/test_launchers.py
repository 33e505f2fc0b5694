"""Launchers over REST: a job in a Kubernetes cluster of the test, nodes, layouts of the planner, and wrong fields."""

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from gateway.stub import RunningGateway, gateway_of
from rondo.base.storage.files import write_json
from rondo.control.jobs.planning import planned
from rondo.gateway.training.inputs import with_plan
from rondo.jobs.spec import JobSpec
from rondo.plan.sizes.shapes import SHAPES
from support.kubernetes import FakeCluster, fake_cluster
from support.waiting import wait_until


@pytest.fixture(scope="module")
def cluster() -> Iterator[FakeCluster]:
    with fake_cluster() as found:
        yield found


@pytest.fixture(scope="module")
def gateway(cluster: FakeCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningGateway]:
    folder = tmp_path_factory.mktemp("gateway")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RONDO_HOME", str(folder / "home"))
        kubernetes = {"api": cluster.url, "account": "/nowhere"}
        jobs = {"poll_seconds": 0.05, "launchers": ["kubernetes"], "kubernetes": kubernetes}
        with gateway_of([], folder, jobs=jobs) as running:
            yield running


def submit(gateway: RunningGateway, **fields: Any) -> httpx.Response:
    body = {"kind": "rl", "model": "base", "task": "reverse", **fields}
    return httpx.post(f"{gateway.url}/v1/jobs", json=body, timeout=60)


def test_a_job_in_a_cluster(gateway: RunningGateway, cluster: FakeCluster) -> None:
    answer = submit(gateway, launcher="kubernetes", gpus=2, time_limit=600)
    assert answer.status_code == 201, answer.text
    job = answer.json()
    assert (job["launcher"], job["resources"]) == ("kubernetes", {"gpus": 2, "time_limit": 600})
    wait_until(lambda: bool(cluster.objects))
    (found,) = cluster.objects.values()
    assert found["spec"]["trainer"]["resourcesPerNode"]["limits"] == {"nvidia.com/gpu": "2"}
    httpx.post(f"{gateway.url}/v1/jobs/{job['id']}/cancel", timeout=60)
    wait_until(lambda: not cluster.objects)


def test_nodes(gateway: RunningGateway, cluster: FakeCluster) -> None:
    cluster.nodes = [{"metadata": {"name": "gpu-1"}, "status": {"allocatable": {"cpu": "8"}}}]
    found = httpx.get(f"{gateway.url}/v1/nodes", timeout=60).json()
    assert [(node["launcher"], node["cpus"]) for node in found["data"]][-1] == ("kubernetes", 8)
    assert found["data"][0]["launcher"] == "local"
    cluster.refusal = 500
    assert (
        "refused by the test"
        in httpx.get(f"{gateway.url}/v1/nodes", timeout=60).json()["errors"]["kubernetes"]
    )
    cluster.refusal = None


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"launcher": "slurm"}, "launcher"),
        ({"launcher": "pbs"}, "launcher"),
        ({"launcher": "kubernetes", "nodes": 2}, "resources.nodes"),
        ({"gpus": 1}, "resources.gpus"),
        ({"time_limit": 0}, "resources.time_limit"),
    ],
)
def test_wrong_fields(gateway: RunningGateway, fields: dict[str, Any], param: str) -> None:
    answer = submit(gateway, **fields)
    assert answer.status_code in (400, 422)
    assert answer.json()["error"]["param"] == param


def test_the_planner_chooses_layout_and_gpus() -> None:
    shape, spec = SHAPES["llama-3-8b"], JobSpec("pretrain", {"model": "base"})
    found = planned(spec, shape, "h100", 1 << 20, 8192)
    gpus = found.resources["gpus"]
    assert found.settings["precision"] == "bfloat16"
    many = planned(JobSpec("pretrain", {}, resources={"gpus": 16}), shape, "h100", 1 << 20, 8192)
    dp, tp, cp, pp = (int(many.settings[f"layout.{name}"]) for name in ("dp", "tp", "cp", "pp"))
    assert dp * tp * cp * pp == 16
    assert many.resources["nodes"] == 2
    assert gpus < 16
    own = JobSpec("pretrain", {"model": "base", "layout.tp": 2}, resources={"gpus": 4})
    assert planned(own, shape, "h100", 1 << 20, 8192) is own
    with pytest.raises(Exception, match="cannot be trained on 2 x l4"):
        planned(JobSpec("pretrain", {}, resources={"gpus": 2}), shape, "l4", 1 << 20, 8192)
    assert json.loads(found.to_json())["resources"]["gpus"] == gpus


def test_a_submission_asks_the_planner(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RONDO_HOME", str(tmp_path))
    sizes = {"hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32, "vocab_size": 128256}
    heads = {"num_attention_heads": 32, "num_key_value_heads": 8, "max_position_embeddings": 8192}
    write_json(tmp_path / "models" / "eight" / "config.json", {"model_type": "llama", **sizes, **heads})
    length = {"model": "eight", "tokens_per_step": 1 << 20, "max_length": 8192}
    found = with_plan(JobSpec("pretrain", length, resources={"gpus": 8}), "h100")
    degrees = [int(found.settings[f"layout.{name}"]) for name in ("dp", "tp", "cp", "pp")]
    assert (math.prod(degrees), found.resources) == (8, {"gpus": 8})
    for kept in (
        JobSpec("rl", {"model": "eight"}),
        JobSpec("sft", {"model": "org/eight"}),
        JobSpec("sft", {"model": "none"}),
        JobSpec("sft", {"model": "eight", "adapter.kind": "lora"}, resources={"gpus": 8}),
    ):
        assert with_plan(kept, "h100") is kept
    jobs = {"gpu_type": "l4", "gpus": [0, 1]}
    body = {"kind": "pretrain", "model": "eight", "data": "org/data", "gpus": 2}
    with gateway_of([], tmp_path, jobs=jobs) as gateway:
        answer = httpx.post(f"{gateway.url}/v1/jobs", json=body, timeout=60)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "resources.gpus")
    assert "cannot be trained on 2 x l4" in answer.text
