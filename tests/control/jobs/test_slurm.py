"""The Slurm launcher with recorded output of Slurm's commands; tests/real/test_slurm_jobs.py runs a real Slurm."""

import json
import subprocess
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from control.jobs.running import CONFIG, state, until
from rondo.base.errors import InvalidRequest, Unavailable
from rondo.base.storage.home import jobs_dir
from rondo.control.config import SlurmConfig
from rondo.control.jobs.book import JobBook, JobRow
from rondo.control.jobs.launchers.folder import AttemptFolder
from rondo.control.jobs.launchers.launcher import Attempt
from rondo.control.jobs.launchers.slurm import commands
from rondo.control.jobs.launchers.slurm.launcher import SlurmLauncher
from rondo.control.jobs.launchers.slurm.script import options, script_of
from rondo.control.jobs.request import ResourceRequest, request_of
from rondo.jobs.spec import JobSpec

RECORDED = {  # Slurm 22.05.8, the fields that are read
    "job_id": 7,
    "name": "job-1",
    "comment": "rondo:job:1",
    "job_state": "RUNNING",
    "exit_code": 768,
    "state_reason": "None",
    "nodes": "n1",
    "restart_cnt": 0,
}
LATER = {  # the shape of Slurm 24.05
    **RECORDED,
    "job_state": ["RUNNING", "COMPLETING"],
    "exit_code": {"status": ["ERROR"], "return_code": {"set": True, "infinite": False, "number": 3}},
    "restart_cnt": {"set": True, "infinite": False, "number": 0},
}
ACCOUNTED = {
    **RECORDED,
    "comment": {"administrator": "", "job": "rondo:job:1", "system": ""},
    "state": {"current": ["FAILED"], "reason": "None"},
    "exit_code": {"status": "ERROR", "return_code": 3},
}
del ACCOUNTED["job_state"]


@dataclass
class Slurm:
    """Commands of a Slurm that a test scripts."""

    jobs: list[dict[str, Any]] = field(default_factory=list)
    calls: list[list[str]] = field(default_factory=list)
    error: str = ""
    denied: str = ""
    """Command that is not permitted."""

    def run(self, command: list[str], **more: Any) -> "subprocess.CompletedProcess[str]":
        self.calls.append(command)
        if self.error:
            return subprocess.CompletedProcess(command, 1, "", self.error)
        if command[0] == self.denied:
            return subprocess.CompletedProcess(command, 1, "", "slurm_update error: Invalid user id")
        answers: dict[str, Callable[[], str]] = {
            "sbatch": self._submit,
            "squeue": lambda: json.dumps({"jobs": self.jobs}),
        }
        return subprocess.CompletedProcess(command, 0, answers.get(command[0], lambda: "{}")(), "")

    def _submit(self) -> str:
        folder = Path(self.calls[-1][2]).parent
        name, comment = f"{folder.parent.name}-{folder.name}", f"rondo:{folder.parent.name}:{folder.name}"
        id = 100 + len(self.jobs)
        self.jobs.append({"job_id": id, "name": name, "comment": comment, "job_state": "PENDING"})
        return f"{id};cluster\n"


@pytest.fixture
def slurm(monkeypatch: pytest.MonkeyPatch) -> Slurm:
    found = Slurm()
    monkeypatch.setattr("rondo.control.jobs.launchers.slurm.commands.subprocess.run", found.run)
    monkeypatch.setattr("rondo.control.jobs.launchers.slurm.launcher.QUEUE_SECONDS", 0.0)
    return found


def submit(book: JobBook, **resources: int) -> JobRow:
    spec = JobSpec("sft", {"model": "a", "data": "x"}, resources=resources)
    return book.submit(spec, "me", launcher="slurm").result()[0]


@pytest.mark.parametrize("found", [RECORDED, LATER])
def test_jobs_of_each_version(found: dict[str, Any]) -> None:
    job = commands._job(found)
    assert (job.id, job.state, job.code, job.nodes, job.reason) == (7, "RUNNING", 3, "n1", "")
    assert commands._job(ACCOUNTED).comment == "rondo:job:1"
    assert (commands._job(ACCOUNTED).state, commands._job(ACCOUNTED).code) == ("FAILED", 3)
    killed = {"status": ["SIGNALED"], "return_code": 0, "signal": {"signal_id": {"set": True, "number": 9}}}
    assert commands._job({**LATER, "exit_code": killed}).code == 137
    assert commands._job({**RECORDED, "exit_code": 9}).code == 137


def test_nodes_of_each_version() -> None:
    old = {
        "name": "n1",
        "state": "idle",
        "state_flags": ["DRAIN"],
        "cpus": 2,
        "gres": "gpu:2",
        "real_memory": 1,
    }
    node = commands._node(old | {"gres_used": "gpu:1", "reason": "broken"})
    assert (node.state, node.gpus, node.gpus_used, node.reason) == ("idle drain", 2, 1, "broken")
    later = commands._node({"name": "n1", "state": ["IDLE", "DRAIN"], "gres": "gpu:a100:4(S:0-1),shard:8"})
    assert (later.state, later.gpus) == ("idle drain", 4)


def test_options_of_a_request() -> None:
    request = ResourceRequest(2, 4, 4, cpus_per_rank=3, memory=2048, time_limit=90)
    told = SlurmConfig(partition="gpu", account="lab", options=["--exclusive"], gres="gpu:h100")
    found = options(request, told, "job-1", "rondo:job:1")
    wanted = {"--nodes=2", "--ntasks-per-node=1", "--cpus-per-task=12", "--gres=gpu:h100:4", "--mem=2048M"}
    wanted |= {"--time=1:30", "--partition=gpu", "--account=lab", "--exclusive", "--requeue"}
    assert wanted <= set(found)
    ranks = options(request, SlurmConfig(start="mpirun"), "job-1", "x")
    assert {"--ntasks-per-node=4", "--cpus-per-task=3"} <= set(ranks)


def test_scripts_are_valid_shell_and_start_ranks(tmp_path: Path) -> None:
    for start, word in (
        ("torchrun", "--node-rank="),
        ("mpirun", "mpirun -n 4 --npernode 2"),
        ("srun", "srun"),
    ):
        told = SlurmConfig(start=start)  # type: ignore[arg-type]
        text = script_of(["train", "sft", "--train.model=it's"], ResourceRequest(2, 2, 1), told, "n", "c")
        (tmp_path / start).write_text(text)
        assert word in text
        assert subprocess.run(["sh", "-n", str(tmp_path / start)], check=False).returncode == 0
    alone = script_of(["rl"], ResourceRequest(), SlurmConfig(python="/opt/python"), "n", "c")
    assert "\n/opt/python -m rondo.cli rl &\n" in alone


def test_requests() -> None:
    def ask(kind: Any = "sft", **resources: int) -> ResourceRequest:
        return request_of(JobSpec(kind, {}, resources=resources), 60)

    assert ask() == ResourceRequest(time_limit=60)
    assert (ask(gpus=4).ranks, ask(gpus=4).gpus) == (4, 4)
    assert (ask(nodes=2).ranks_per_node, ask("rl", gpus=4).ranks) == (1, 1)
    assert ask(time_limit=5).time_limit == 5
    for wrong, param in (({"gpus": 3, "nodes": 2}, "gpus"), ({"ranks": 3, "nodes": 2}, "ranks")):
        with pytest.raises(InvalidRequest) as caught:
            ask(**wrong)
        assert caught.value.param == f"resources.{param}"
    with pytest.raises(InvalidRequest, match="one process"):
        ask("rl", nodes=2)


def test_from_the_queue_to_the_end(book: JobBook, slurm: Slurm) -> None:
    launcher, job = SlurmLauncher(), submit(book)
    until(book, launcher, lambda: book.get(job.id).result().launched)
    slurm.jobs[0] |= {"state_reason": "Resources"}
    until(book, launcher, lambda: "waits: Resources" in book.events(job.id).result()[0].message)
    folder = AttemptFolder.of(job.id, 1)
    (folder.path / "report.json").write_text('{"hash": "a"}')
    slurm.jobs[0] |= {"job_state": "RUNNING", "nodes": "n1"}
    until(book, launcher, lambda: state(book, job) == "running")
    slurm.jobs[0] |= {"job_state": "NODE_FAIL"}
    until(book, launcher, lambda: book.get(job.id).result().attempt == 2)
    slurm.jobs[1] |= {"job_state": "FAILED", "exit_code": 512}
    until(book, launcher, lambda: state(book, job) == "failed")
    assert book.get(job.id).result().failures == 1


def test_a_crash_during_the_submission(book: JobBook, slurm: Slurm, monkeypatch: pytest.MonkeyPatch) -> None:
    launcher, job = SlurmLauncher(), submit(book)
    until(book, launcher, lambda: book.get(job.id).result().launched)
    (AttemptFolder.of(job.id, 1).path / "slurm").unlink()
    assert SlurmLauncher().look(job.id, 1).phase == "waiting"
    assert (AttemptFolder.of(job.id, 1).path / "slurm").read_text() == "100\n"
    assert SlurmLauncher().look(job.id, 2).phase == "absent"
    assert (AttemptFolder.of(job.id, 2).path / "abandoned").exists(), "it must not start later"


def test_errors_of_the_controller_and_of_the_request(book: JobBook, slurm: Slurm) -> None:
    launcher, down, refused = SlurmLauncher(), submit(book), submit(book, nodes=3)
    slurm.error = "sbatch: error: Batch job submission failed: Unable to contact slurm controller"
    passes = iter(range(3))
    until(book, launcher, lambda: next(passes, None) is None)
    assert [book.get(each.id).result().failures for each in (down, refused)] == [0, 0]
    assert sum(call[0] == "sbatch" for call in slurm.calls) <= 6, "one start a pass is tried"
    with pytest.raises(Unavailable):
        launcher.nodes()
    slurm.error = "sbatch: error: Requested node configuration is not available"
    until(book, launcher, lambda: state(book, refused) == "failed")
    assert "not available" in str(book.get(refused.id).result().error)


def test_a_faulty_gpu_drains_its_node_and_the_job_continues(book: JobBook, slurm: Slurm) -> None:
    launcher, job = SlurmLauncher(), submit(book, gpus=1)
    until(book, launcher, lambda: book.get(job.id).result().launched)
    told = {"node": "n1", "faults": [{"gpu": 0, "reason": "Xid 79, the GPU has fallen off the bus"}]}
    (AttemptFolder.of(job.id, 1).path / "health-n1.json").write_text(json.dumps(told))
    slurm.jobs[0] |= {"job_state": "FAILED", "exit_code": 75 << 8}
    until(book, launcher, lambda: book.get(job.id).result().attempt == 2)
    drained = [call for call in slurm.calls if call[0] == "scontrol"]
    assert drained[0][2:5] == [
        "nodename=n1",
        "state=drain",
        "reason=rondo: GPU 0: " + told["faults"][0]["reason"],
    ]
    assert book.get(job.id).result().failures == 0


def test_a_faulty_node_that_cannot_be_drained_is_excluded(book: JobBook, slurm: Slurm) -> None:
    launcher, job = SlurmLauncher(), submit(book, gpus=1)
    slurm.denied = "scontrol"
    until(book, launcher, lambda: book.get(job.id).result().launched)
    told = {"node": "n1", "faults": [{"gpu": None, "reason": "nvidia-smi failed: GPU is lost"}]}
    (AttemptFolder.of(job.id, 1).path / "health-n1.json").write_text(json.dumps(told))
    slurm.jobs[0] |= {"job_state": "FAILED", "exit_code": 75 << 8}
    until(book, launcher, lambda: len(slurm.jobs) == 2)
    assert "#SBATCH --exclude=n1\n" in (AttemptFolder.of(job.id, 2).path / "job.sh").read_text()
    messages = [event.message for event in book.events(job.id).result()]
    assert "Attempt 2 starts. It avoids nodes with a fault: n1." in messages
    slurm.jobs[1] |= {"job_state": "NODE_FAIL"}
    until(book, launcher, lambda: len(slurm.jobs) == 3)
    assert "--exclude=n1" in (AttemptFolder.of(job.id, 3).path / "job.sh").read_text()
    slurm.error = "sbatch: error: Requested node configuration is not available"
    with pytest.raises(InvalidRequest, match=r"GPU fault are excluded: n1\."):
        launcher.start(Attempt(job.id, 4, job.spec, {}, ("n1",)))


def test_displaced_attempts_without_a_new_checkpoint_are_limited(book: JobBook, slurm: Slurm) -> None:
    config = CONFIG.model_copy(update={"displacements": 3})
    launcher, job = SlurmLauncher(), submit(book)

    def lose(number: int) -> None:
        until(book, launcher, lambda: len(slurm.jobs) == number, config)
        (AttemptFolder.of(job.id, number).path / "report.json").write_text('{"hash": "a"}')
        slurm.jobs[-1] |= {"job_state": "NODE_FAIL"}

    lose(1)
    until(book, launcher, lambda: len(slurm.jobs) == 2, config)
    (AttemptFolder.of(job.id, 1).path / "displaced.json").unlink()  # as if it had ended in another way
    lose(2)
    until(book, launcher, lambda: len(slurm.jobs) == 3, config)
    saved = jobs_dir() / "a" / "checkpoints" / "step_5"
    saved.mkdir(parents=True)
    (saved / "manifest.json").write_text("{}")
    for number in (3, 4, 5):
        lose(number)
    until(book, launcher, lambda: state(book, job) == "failed", config)
    row = book.get(job.id).result()
    assert (row.attempt, row.failures) == (5, 1)
    assert row.error is not None
    assert row.error["code"] == "job_displaced"
    assert "a node failed. 3 attempts in a row were displaced" in row.error["message"]
