"""The Kubernetes launcher against the published schemas and an API server of the test. No real cluster ran it."""

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from control.jobs.running import CONFIG, state, until
from rondo.base.errors import InvalidRequest, Unavailable
from rondo.control.config import KubernetesConfig
from rondo.control.jobs.book import JobBook, JobRow
from rondo.control.jobs.launchers.folder import AttemptFolder
from rondo.control.jobs.launchers.kubernetes.launcher import KubernetesLauncher, state_of
from rondo.control.jobs.launchers.kubernetes.manifest import Kind, manifest_of, secret_of
from rondo.control.jobs.launchers.kubernetes.pods import cause_of
from rondo.control.jobs.launchers.launcher import Attempt
from rondo.control.jobs.request import request_of
from rondo.control.keys import Keys
from rondo.jobs.health import FAULTY
from rondo.jobs.spec import JobSpec
from support.kubernetes import FakeCluster, fake_cluster, problems

FULL = {"nodes": 2, "gpus": 4, "memory": 1024, "cpus": 3, "time_limit": 600}


@pytest.fixture
def kubernetes() -> Iterator[FakeCluster]:
    with fake_cluster() as found:
        yield found


def config(kubernetes: FakeCluster, **more: Any) -> KubernetesConfig:
    return KubernetesConfig(api=kubernetes.url, account="/nowhere", **more)


def submit(book: JobBook, **resources: int) -> JobRow:
    spec = JobSpec("sft", {"model": "a", "data": "x"}, resources=resources)
    return book.submit(spec, "me", launcher="kubernetes").result()[0]


def condition(kind: str, message: str = "") -> dict[str, Any]:
    return {"type": kind, "status": "True", "message": message}


@pytest.mark.parametrize("kind", ["trainjob", "jobset"])
@pytest.mark.parametrize("resources", [{}, FULL])
def test_manifests_follow_the_published_schemas(kind: Kind, resources: dict[str, int]) -> None:
    spec = JobSpec("sft", {"model": "it's", "lr": 1e-4}, resources=resources)
    told = KubernetesConfig(claim="home", queue="research", secret="keys", env={"NCCL_DEBUG": "INFO"})
    found = manifest_of(
        kind, "job-1", spec.arguments(), request_of(spec), told, "/rondo", "/rondo/runs/job/1"
    )
    assert problems(found) == []
    assert found["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "research"
    assert found["spec"]["suspend"] is True
    found["spec"]["numNodes"] = 1
    assert problems(found), "unknown fields are refused"
    del found["spec"]["numNodes"]
    found["spec"]["suspend"] = "yes"
    assert problems(found)


def test_resources_of_a_manifest() -> None:
    spec = JobSpec("sft", {"model": "a"}, resources=FULL)
    found = manifest_of(
        "trainjob", "job-1", spec.arguments(), request_of(spec), KubernetesConfig(), "/rondo", "/rondo/x"
    )
    trainer = found["spec"]["trainer"]
    assert (trainer["numNodes"], trainer["numProcPerNode"]) == (2, 2)
    assert trainer["resourcesPerNode"] == {
        "requests": {"cpu": "6", "memory": "1024Mi", "nvidia.com/gpu": "2"},
        "limits": {"memory": "1024Mi", "nvidia.com/gpu": "2"},
    }
    assert (
        "timeout --preserve-status --kill-after=60 600 python3 -m torch.distributed.run"
        in trainer["command"][2]
    )
    other = manifest_of(
        "jobset", "job-1", spec.arguments(), request_of(spec), KubernetesConfig(), "/rondo", "/rondo/x"
    )
    pod = other["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]
    env = {each["name"]: each.get("value") for each in pod["containers"][0]["env"]}
    assert (env["PET_NNODES"], env["PET_MASTER_ADDR"]) == ("2", "job-1-node-0-0.job-1")


def test_the_script_of_a_pod_leaves_output_and_exit_code(tmp_path: Path) -> None:
    (tmp_path / "python3").write_text("#!/bin/sh\necho said; exit 3\n")
    (tmp_path / "python3").chmod(0o755)
    spec, folder = JobSpec("sft", {"model": "a"}), tmp_path / "it's"
    found = manifest_of(
        "trainjob", "job-1", spec.arguments(), request_of(spec), KubernetesConfig(), "/rondo", str(folder)
    )
    for rank in ("0", "1"):
        env = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "PET_NODE_RANK": rank}
        assert subprocess.run(found["spec"]["trainer"]["command"], env=env, check=False).returncode == 3
    assert (folder / "output.log").read_text() == "said\n"
    assert (folder / "code").read_text() == (folder / "node-1" / "code").read_text() == "3\n"


def test_a_job_waits_runs_and_fails(book: JobBook, kubernetes: FakeCluster) -> None:
    launcher = KubernetesLauncher(config(kubernetes, queue="research"))
    job = submit(book, nodes=2)
    passes = iter(range(2))
    until(book, launcher, lambda: next(passes, None) is None)
    messages = [event.message for event in book.events(job.id).result()]
    assert messages[0] == f"trainjob {job.id}-1 waits: it is suspended."
    kubernetes.say(jobsStatus=[{"name": "node", "active": 1}])
    (AttemptFolder.of(job.id, 1).path / "report.json").write_text('{"hash": "a"}')
    until(book, launcher, lambda: state(book, job) == "running")
    (AttemptFolder.of(job.id, 1).path / "code").write_text("2\n")
    kubernetes.say(conditions=[condition("Failed")])
    until(book, launcher, lambda: state(book, job) == "failed")


def test_a_lost_pod_is_no_failure_of_the_job(book: JobBook, kubernetes: FakeCluster) -> None:
    launcher, job = KubernetesLauncher(config(kubernetes)), submit(book)
    until(book, launcher, lambda: book.get(job.id).result().launched)
    kubernetes.say(conditions=[condition("Failed", "node lost")])
    until(book, launcher, lambda: book.get(job.id).result().attempt == 2)
    assert book.get(job.id).result().failures == 0


def pod(name: str = "a-1-node-0-0", **status: Any) -> dict[str, Any]:
    return {"metadata": {"name": name}, "spec": {"nodeName": "n1"}, "status": status}


def ended(code: int, reason: str = "Error", when: int = 0) -> list[dict[str, Any]]:
    told = {"exitCode": code, "reason": reason, "finishedAt": f"2026-01-01T00:00:{when:02d}Z"}
    return [{"name": "node", "state": {"terminated": told}}]


DRAINED = {"type": "DisruptionTarget", "status": "True", "reason": "EvictionByEvictionAPI"}


@pytest.mark.parametrize(
    ("pods", "phase", "code", "text"),
    [
        ([pod(containerStatuses=ended(137, "OOMKilled"))], "ended", 137, "raise resources.memory"),
        (
            [pod(containerStatuses=ended(1, when=5)), pod("b", containerStatuses=ended(3))],
            "ended",
            3,
            "pod b ended",
        ),
        ([pod(containerStatuses=ended(1)), pod("b", conditions=[DRAINED])], "displaced", None, "pod b on n1"),
        (
            [pod(reason="Evicted", message="The node was low on resource: memory.")],
            "displaced",
            None,
            "low on",
        ),
        (
            [pod(reason="Evicted", message="Usage exceeds the total limit of containers 1Gi.")],
            "ended",
            137,
            "limit",
        ),
        ([pod(phase="Pending")], None, None, ""),
        ([], None, None, ""),
    ],
)
def test_causes_of_a_failed_attempt(
    pods: list[dict[str, Any]], phase: str | None, code: int | None, text: str
) -> None:
    found = cause_of(pods)
    assert (found.phase, found.code) == (phase, code) if found else phase is None
    assert text in (found.detail if found else "")


@pytest.mark.parametrize("ending", [ended(137, "OOMKilled"), ended(1)])  # the latter: an unwritable volume
def test_containers_that_always_fail_end_the_job(
    ending: list[dict[str, Any]], book: JobBook, kubernetes: FakeCluster
) -> None:
    launcher, job = KubernetesLauncher(config(kubernetes)), submit(book)
    kubernetes.pods = [pod(containerStatuses=ending)]
    for number in range(1, CONFIG.attempts + 1):
        place = f"{job.id}-{number}"
        until(book, launcher, lambda place=place: any(place in each for each in kubernetes.objects))
        kubernetes.say(conditions=[condition("Failed")])
    until(book, launcher, lambda: state(book, job) == "failed")
    row = book.get(job.id).result()
    assert (row.attempt, row.failures, row.launched) == (CONFIG.attempts, CONFIG.attempts, False)
    assert "of pod a-1-node-0-0" in str(row.error) or "pod a-1-node-0-0 used more memory" in str(row.error)


def test_objects_of_ended_attempts_are_deleted(book: JobBook, kubernetes: FakeCluster) -> None:
    launcher, job = KubernetesLauncher(config(kubernetes)), submit(book)
    until(book, launcher, lambda: book.get(job.id).result().launched)
    kubernetes.say(conditions=[condition("Failed", "node lost")])
    until(book, launcher, lambda: book.get(job.id).result().attempt == 2)
    (path,) = kubernetes.objects
    assert path.endswith(f"{job.id}-2")
    (AttemptFolder.of(job.id, 2).path / "code").write_text("2\n")
    kubernetes.say(conditions=[condition("Failed")])
    delete, calls = launcher.clean, list[int]()

    def fails_once(id: str, number: int) -> None:
        calls.append(number)
        if len(calls) == 1:
            raise Unavailable("The API does not answer.")
        delete(id, number)

    launcher.clean = fails_once  # type: ignore[method-assign]
    until(book, launcher, lambda: bool(calls))
    assert (state(book, job), book.get(job.id).result().launched) == ("failed", True)
    until(book, launcher, lambda: not book.get(job.id).result().launched)
    assert kubernetes.objects == {}


@pytest.mark.parametrize("kind", ["trainjob", "jobset"])
def test_keys_of_an_attempt_are_in_a_secret(kind: Kind, book: JobBook, kubernetes: FakeCluster) -> None:
    told = config(kubernetes, kind=kind, secret="shared", claim="home")
    launcher = KubernetesLauncher(told)
    owner = Keys(book.store).make("me").result()[0].id
    job = book.submit(JobSpec("rl", {"model": "a"}), owner, launcher="kubernetes").result()[0]
    gateway = CONFIG.model_copy(update={"gateway_url": "http://gateway:8000", "secret_keys": [owner]})
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HF_TOKEN", "own")
        until(book, launcher, lambda: book.get(job.id).result().launched, gateway)
    ((path, secret),) = kubernetes.secrets.items()
    assert path.endswith(f"/secrets/{job.id}-1")
    keys = secret["stringData"]
    assert (keys["RONDO_BASE_URL"], keys["HF_TOKEN"]) == ("http://gateway:8000", "own")
    (found,) = kubernetes.objects.values()
    text = json.dumps(found)
    assert keys["RONDO_API_KEY"] not in text
    for name in ("RONDO_BASE_URL", "RONDO_API_KEY", "HF_TOKEN"):
        source = {"secretKeyRef": {"name": f"{job.id}-1", "key": name}}
        assert text.count(json.dumps({"name": name, "valueFrom": source})) == 1
        assert text.count(f'"name": "{name}"') == 1, "each variable has one source"
    assert '"key": "WANDB_API_KEY"' in text
    (AttemptFolder.of(job.id, 1).path / "code").write_text("2\n")
    kubernetes.say(conditions=[condition("Failed")])
    until(book, launcher, lambda: state(book, job) == "failed")
    until(book, launcher, lambda: not book.get(job.id).result().launched)
    assert kubernetes.secrets == {}


def test_a_refused_attempt_leaves_no_secret(book: JobBook, kubernetes: FakeCluster) -> None:
    attempt = Attempt("job", 1, JobSpec("sft", {"model": "a"}), {"RONDO_API_KEY": "secret"})
    launcher = KubernetesLauncher(config(kubernetes))
    kubernetes.kinds = set()
    with pytest.raises(Unavailable, match="neither TrainJobs nor JobSets"):
        launcher.start(attempt)
    assert kubernetes.secrets == {}
    bad = secret_of("job-1", {"not a key": "x"}, KubernetesConfig())
    assert problems(bad), "the schema refuses it"


@pytest.mark.parametrize("kind", ["trainjob", "jobset"])
def test_a_faulty_gpu_of_a_node_is_avoided(kind: Kind, book: JobBook, kubernetes: FakeCluster) -> None:
    launcher, job = KubernetesLauncher(config(kubernetes, kind=kind)), submit(book, gpus=1)
    until(book, launcher, lambda: book.get(job.id).result().launched)
    told = {"node": "n1", "faults": [{"gpu": None, "reason": "nvidia-smi failed: GPU is lost"}]}
    (AttemptFolder.of(job.id, 1).path / "health-n1.json").write_text(json.dumps(told))
    kubernetes.pods = [pod(containerStatuses=ended(FAULTY))]
    kubernetes.say(conditions=[condition("Failed")])
    until(book, launcher, lambda: any(f"{job.id}-2" in path for path in kubernetes.objects))
    assert book.get(job.id).result().failures == 0
    (found,) = kubernetes.objects.values()
    avoided = '{"matchFields": [{"key": "metadata.name", "operator": "NotIn", "values": ["n1"]}]}'
    assert avoided in json.dumps(found)
    assert "python3 -m rondo.jobs.health" in json.dumps(found)
    assert '{"name": "NODE_NAME", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}}' in json.dumps(
        found
    )


def test_the_script_of_a_pod_checks_its_gpus(tmp_path: Path) -> None:
    (tmp_path / "python3").write_text('#!/bin/sh\necho "$2" >> ../calls; [ "$2" != "$FAILS" ]\n')
    (tmp_path / "python3").chmod(0o755)
    spec, folder = JobSpec("sft", {"model": "a"}, resources={"gpus": 1}), tmp_path / "job"
    told = (KubernetesConfig(), "/rondo", str(folder))
    found = manifest_of("trainjob", "job-1", spec.arguments(), request_of(spec), *told)
    for fails, code in (("rondo.cli", 1), ("rondo.jobs.health", FAULTY)):
        env = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "FAILS": fails}
        assert subprocess.run(found["spec"]["trainer"]["command"], env=env, check=False).returncode == code
    calls = (tmp_path / "calls").read_text().split()
    assert calls == ["rondo.jobs.health", "rondo.cli", "rondo.jobs.health", "rondo.jobs.health"]


def test_cancellation_deletes_and_an_operator_may_delete(book: JobBook, kubernetes: FakeCluster) -> None:
    launcher, job = KubernetesLauncher(config(kubernetes)), submit(book)
    until(book, launcher, lambda: book.get(job.id).result().launched)
    book.cancel(job.id).result()
    until(book, launcher, lambda: not book.get(job.id).result().launched)
    assert [path.rpartition("/")[2] for path, _ in kubernetes.deleted] == [f"{job.id}-1"]
    other = submit(book)
    until(book, launcher, lambda: book.get(other.id).result().launched)
    (AttemptFolder.of(other.id, 1).path / "begun").touch()
    kubernetes.objects.clear()
    until(book, launcher, lambda: state(book, other) == "cancelled")


def test_jobsets_where_there_is_no_trainer(book: JobBook, kubernetes: FakeCluster) -> None:
    kubernetes.kinds = {"jobsets"}
    launcher, job = KubernetesLauncher(config(kubernetes)), submit(book)
    until(book, launcher, lambda: book.get(job.id).result().launched)
    assert [found["kind"] for found in kubernetes.objects.values()] == ["JobSet"]
    assert launcher.look(job.id, 1).phase == "waiting"
    kubernetes.say(replicatedJobsStatus=[{"name": "node", "ready": 1}])
    assert launcher.look(job.id, 1).phase == "running"
    (found,) = kubernetes.objects.values()
    found["status"] = {"conditions": [condition("Completed")]}
    assert state_of("jobset", found, None).code == 0


def test_refusals(book: JobBook, kubernetes: FakeCluster) -> None:
    launcher = KubernetesLauncher(config(kubernetes))
    kubernetes.refusal = 403
    with pytest.raises(Unavailable, match="service account"):
        launcher.nodes()
    job, passes = submit(book), iter(range(2))
    until(book, launcher, lambda: next(passes, None) is None)
    assert book.get(job.id).result().failures == 0
    kubernetes.refusal = 422
    until(book, launcher, lambda: state(book, job) == "failed")
    assert book.get(job.id).result().failures == 1
    with pytest.raises(InvalidRequest, match="not divisible"):
        launcher.check(JobSpec("sft", {}, resources={"gpus": 3, "nodes": 2}))


def test_nodes(kubernetes: FakeCluster) -> None:
    kubernetes.nodes = [
        {
            "metadata": {"name": "gpu-1"},
            "spec": {"taints": [{"key": "gpu", "effect": "NoSchedule"}]},
            "status": {
                "conditions": [{"type": "Ready", "status": "True"}],
                "allocatable": {"cpu": "7500m", "memory": "16Gi", "nvidia.com/gpu": "8"},
            },
        }
    ]
    (node,) = KubernetesLauncher(config(kubernetes)).nodes()
    assert (node.name, node.state, node.cpus, node.gpus, node.memory) == ("gpu-1", "ready", 7, 8, 16384)
