"""Jobs of the platform in a real Slurm of two nodes: queue, cancellation, lost nodes and controllers, time limits."""

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from safetensors.torch import load_file

from control.jobs.running import CONFIG, PROGRAM, state, until
from rondo.base.storage.home import jobs_dir
from rondo.cli.main import main
from rondo.control.config import SlurmConfig
from rondo.control.jobs.book import JobBook, JobRow
from rondo.control.jobs.launchers.folder import AttemptFolder
from rondo.control.jobs.launchers.slurm import commands
from rondo.control.jobs.launchers.slurm.launcher import SlurmLauncher
from rondo.control.store.store import Store
from rondo.jobs.job import Job
from rondo.jobs.spec import JobSpec
from support.home import own_home
from support.one_job import STEPS, pretraining
from support.slurm import Cluster, cluster
from support.waiting import wait_until

pytestmark = [pytest.mark.real, pytest.mark.timeout(900)]

STAND_IN = """#!/bin/sh
[ "$2" != rondo.jobs.health ] || exec {python} "$@"
for each; do case $each in --train.model=*) model=${{each#*=}};; --train.data=*) data=${{each#*=}};; esac; done
exec {python} -S {program} "$data" "$model"
"""
"""A Python that runs the stand-in of the command that trains."""


@pytest.fixture(scope="module")
def slurm() -> Iterator[Cluster]:
    with tempfile.TemporaryDirectory(prefix="slurm-") as folder, cluster(Path(folder), 2, 2) as found:
        yield found


@pytest.fixture
def book(tmp_path: Path, slurm: Cluster, monkeypatch: pytest.MonkeyPatch) -> Iterator[JobBook]:
    monkeypatch.setenv("RONDO_HOME", str(own_home(tmp_path / "home")))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    for name in ("PATH", "SLURM_CONF"):
        monkeypatch.setenv(name, slurm.environment[name])
    store = Store(tmp_path / "store.sqlite")
    yield JobBook(store)
    store.close()
    for each in commands.squeue():
        commands.scancel(each.id)
    wait_until(slurm.idle, 120)


@pytest.fixture
def launcher(tmp_path: Path) -> SlurmLauncher:
    program, python = tmp_path / "program.py", tmp_path / "python"
    program.write_text(PROGRAM)
    python.write_text(STAND_IN.format(python=sys.executable, program=program))
    python.chmod(0o755)
    return SlurmLauncher(SlurmConfig(python=str(python), grace_seconds=45))


def submit(book: JobBook, mode: str, name: str = "a", **resources: int) -> JobRow:
    spec = JobSpec("sft", {"model": name, "data": mode}, resources=resources)
    return book.submit(spec, "me", launcher="slurm").result()[0]


def attempts(book: JobBook, job: JobRow) -> tuple[int, int]:
    row = book.get(job.id).result()
    return row.attempt, row.failures


def messages(book: JobBook, job: JobRow) -> str:
    return "\n".join(event.message for event in book.events(job.id, limit=100).result())


def go(name: str = "a") -> None:
    (jobs_dir() / name / "go").touch()


def test_from_submission_to_success(book: JobBook, launcher: SlurmLauncher) -> None:
    first = submit(book, "long", "first", gpus=2, ranks=1)
    until(book, launcher, lambda: state(book, first) == "running")
    nodes = launcher.nodes()
    assert [node.name for node in nodes] == ["n1", "n2"]
    assert sum(node.gpus_used for node in nodes) == 2
    go("first")
    until(book, launcher, lambda: state(book, first) == "succeeded")
    text = messages(book, first)
    assert "runs on n" in text
    crash = submit(book, "crash", "crash")
    until(book, launcher, lambda: state(book, crash) == "failed")
    error = book.get(crash.id).result().error
    assert error is not None
    assert "exit code 1. out of luck" in error["message"]
    assert attempts(book, crash) == (CONFIG.attempts, CONFIG.attempts)


def test_a_full_cluster_queues_and_a_waiting_job_is_cancelled(book: JobBook, launcher: SlurmLauncher) -> None:
    running = submit(book, "stubborn", "running", nodes=2, cpus=2)
    until(book, launcher, lambda: state(book, running) == "running")
    waiting = submit(book, "long", "waiting")
    until(book, launcher, lambda: "waits: Resources" in messages(book, waiting))
    book.cancel(waiting.id).result()
    until(book, launcher, lambda: not book.get(waiting.id).result().launched)
    book.cancel(running.id).result()
    until(book, launcher, lambda: not book.get(running.id).result().launched)
    assert state(book, running) == state(book, waiting) == "cancelled"
    ended = ("CANCELLED", "FAILED")
    ours = {f"{job.id}-1" for job in (running, waiting)}
    wait_until(lambda: all(each.state in ended for each in commands.squeue() if each.name in ours), 60)


def test_impossible_requests_and_cancellation_by_an_operator(book: JobBook, launcher: SlurmLauncher) -> None:
    refused = submit(book, "short", "refused", gpus=3, ranks=1)
    until(book, launcher, lambda: state(book, refused) == "failed")
    error = book.get(refused.id).result().error
    assert error is not None
    assert "sbatch failed" in error["message"]
    assert attempts(book, refused)[0] == 1
    job = submit(book, "stubborn")
    until(book, launcher, lambda: state(book, job) == "running")
    commands.scancel(int((AttemptFolder.of(job.id, 1).path / "slurm").read_text()))
    until(book, launcher, lambda: state(book, job) == "cancelled")


def test_a_submission_is_adopted_by_its_comment(book: JobBook, launcher: SlurmLauncher) -> None:
    job = submit(book, "long")
    until(book, launcher, lambda: state(book, job) == "running")
    (AttemptFolder.of(job.id, 1).path / "slurm").unlink()  # as if the gateway had ended before it was written
    assert SlurmLauncher().look(job.id, 1).phase == "running"
    book.pause(job.id).result()
    until(book, launcher, lambda: state(book, job) == "paused")
    book.resume(job.id).result()
    until(book, launcher, lambda: state(book, job) == "running")
    go()
    until(book, launcher, lambda: state(book, job) == "succeeded")
    assert attempts(book, job) == (2, 0)


def test_a_lost_controller_changes_no_job(book: JobBook, launcher: SlurmLauncher, slurm: Cluster) -> None:
    job = submit(book, "long")
    until(book, launcher, lambda: state(book, job) == "running")
    time.sleep(12)  # the controller writes the states of jobs to its disk every few seconds
    slurm.kill("slurmctld")
    later, passes = submit(book, "short", "later"), iter(range(2))
    until(book, launcher, lambda: next(passes, None) is None, limit=300)
    assert state(book, job) == "running"
    assert attempts(book, later)[1] == 0
    slurm.start_controller()
    go()
    until(book, launcher, lambda: state(book, job) == state(book, later) == "succeeded", limit=300)
    assert attempts(book, job) == (1, 0)


def test_a_lost_controller_delays_a_pause_and_a_cancellation(
    book: JobBook, launcher: SlurmLauncher, slurm: Cluster
) -> None:
    job = submit(book, "long")

    def without_controller() -> None:
        slurm.kill("slurmctld")
        passes = iter(range(2))
        until(book, launcher, lambda: next(passes, None) is None, limit=300)
        assert book.get(job.id).result().launched

    until(book, launcher, lambda: state(book, job) == "running")
    time.sleep(12)  # the controller writes the states of jobs to its disk every few seconds
    book.pause(job.id).result()
    without_controller()
    assert state(book, job) == "pausing"
    slurm.start_controller()
    until(book, launcher, lambda: state(book, job) == "paused", limit=300)
    book.resume(job.id).result()
    until(book, launcher, lambda: state(book, job) == "running", limit=300)
    time.sleep(12)
    book.cancel(job.id).result()
    without_controller()
    slurm.start_controller()
    until(book, launcher, lambda: not book.get(job.id).result().launched, limit=300)
    assert state(book, job) == "cancelled"
    assert attempts(book, job) == (2, 0)
    wait_until(slurm.idle, 120)


def test_a_job_of_a_killed_node_continues_on_another(
    book: JobBook, launcher: SlurmLauncher, slurm: Cluster
) -> None:
    job = submit(book, "long")
    until(book, launcher, lambda: state(book, job) == "running")
    (found,) = [each for each in commands.squeue() if each.state == "RUNNING"]
    slurm.kill(found.nodes)
    until(book, launcher, lambda: "after 1 requeues" in messages(book, job), limit=300)
    go()
    until(book, launcher, lambda: state(book, job) == "succeeded", limit=300)
    assert attempts(book, job) == (1, 0)
    (again,) = [each for each in commands.squeue() if each.id == found.id]
    assert again.nodes != found.nodes
    slurm.start_node(found.nodes)
    wait_until(slurm.idle, 120)


@pytest.fixture(scope="module")
def one(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[str], Path]:
    """Arguments of a job, and its folder after one process has done it here."""
    train = pretraining(tmp_path_factory.mktemp("ground"))
    home = own_home(tmp_path_factory.mktemp("one"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RONDO_HOME", str(home))
        assert main(train) == 0
    return train, next((home / "jobs").glob("*/spec.json")).parent


def spec_of(train: list[str], **resources: int) -> JobSpec:
    given = dict(zip(train[2:6:2], train[3:6:2], strict=True))
    settings = {name.removeprefix("--"): value for name, value in given.items()}
    settings |= dict(each.removeprefix("--train.").split("=") for each in train[6:])
    return JobSpec("pretrain", settings, resources=resources)


@pytest.mark.parametrize("start", ["torchrun", "mpirun", "srun"])
def test_two_nodes_do_the_job_of_one(start: str, book: JobBook, one: tuple[list[str], Path]) -> None:
    train, alone = one
    launcher = SlurmLauncher(SlurmConfig(start=start))  # type: ignore[arg-type]
    job = book.submit(spec_of(train, nodes=2), "me", launcher="slurm").result()[0]
    until(book, launcher, lambda: book.get(job.id).result().final, limit=600)
    output = AttemptFolder.of(job.id, 1).output.read_text()
    assert state(book, job) == "succeeded", output
    ours, theirs = Job(jobs_dir() / str(book.get(job.id).result().hash)), Job(alone)
    assert ours.name == theirs.name
    losses = [[row["loss"] for row in each.metrics()] for each in (ours, theirs)]
    assert losses[0] == pytest.approx(losses[1], abs=1e-5)
    assert len(list(Path(ours.checkpoints).glob("step_*/*.distcp"))) >= 2, "each rank has saved"


SLOW = """
import os
if os.environ.get("RONDO_JOB_REPORT", "").endswith("/1/report.json"):
    import time
    from rondo.jobs.job import Job
    log = Job.log
    Job.log = lambda self, row: (time.sleep(20), log(self, row))[1]
"""


def test_a_time_limit_is_reached_and_the_job_resumed_with_identical_bits(
    book: JobBook, one: tuple[list[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    train, alone = one
    (tmp_path / "slow").mkdir()
    (tmp_path / "slow" / "sitecustomize.py").write_text(SLOW)
    paths = [str(tmp_path / "slow"), os.environ.get("PYTHONPATH", "")]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, paths)))
    launcher = SlurmLauncher(SlurmConfig(grace_seconds=50), time_limit=90)
    job = book.submit(spec_of(train), "me", launcher="slurm").result()[0]
    until(book, launcher, lambda: book.get(job.id).result().final, limit=600)
    assert state(book, job) == "succeeded", AttemptFolder.of(job.id, 1).output.read_text()
    assert attempts(book, job)[0] > 1
    assert attempts(book, job)[1] == 0
    assert "saved a checkpoint" in messages(book, job)
    ours = Job(jobs_dir() / str(book.get(job.id).result().hash))
    mine, theirs = (load_file(each.export / "model.safetensors") for each in (ours, Job(alone)))
    assert mine.keys() == theirs.keys()
    assert all(mine[name].equal(theirs[name]) for name in theirs)


SLOW_AT_FIRST = """
import os
if "RONDO_JOB_REPORT" in os.environ and "SLURM_RESTART_COUNT" not in os.environ:
    import time
    from rondo.jobs.job import Job
    log = Job.log
    Job.log = lambda self, row: (time.sleep(8), log(self, row))[1]
"""


def test_training_on_a_killed_node_resumes_from_its_checkpoint_with_identical_bits(
    book: JobBook,
    one: tuple[list[str], Path],
    slurm: Cluster,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    train, alone = one
    (tmp_path / "slow").mkdir()
    (tmp_path / "slow" / "sitecustomize.py").write_text(SLOW_AT_FIRST)
    paths = [str(tmp_path / "slow"), os.environ.get("PYTHONPATH", "")]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, paths)))
    launcher = SlurmLauncher()
    job = book.submit(spec_of([*train, "--train.save_every=1"]), "me", launcher="slurm").result()[0]
    until(book, launcher, lambda: state(book, job) == "running", limit=300)
    ours = Job(jobs_dir() / str(book.get(job.id).result().hash))
    until(book, launcher, lambda: bool(ours.saved_steps()), limit=300)
    (found,) = [each for each in commands.squeue() if each.state == "RUNNING"]
    slurm.kill(found.nodes)
    saved = max(ours.saved_steps())
    assert 0 < saved < STEPS
    rows = ours.metrics()[:saved]
    until(book, launcher, lambda: book.get(job.id).result().final, limit=600)
    assert state(book, job) == "succeeded", AttemptFolder.of(job.id, 1).output.read_text()
    assert "after 1 requeues" in messages(book, job)
    assert attempts(book, job) == (1, 0)
    assert ours.metrics()[:saved] == rows, "steps before the checkpoint are not repeated"
    mine, theirs = (load_file(each.export / "model.safetensors") for each in (ours, Job(alone)))
    assert all(mine[name].equal(theirs[name]) for name in theirs)
    slurm.start_node(found.nodes)
    wait_until(slurm.idle, 120)


def test_squeue_is_read_once_for_many_jobs(
    book: JobBook, launcher: SlurmLauncher, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs = [submit(book, "long", f"job-{number}") for number in range(3)]
    until(book, launcher, lambda: all(book.get(job.id).result().launched for job in jobs))
    calls = list[list[str]]()
    run = subprocess.run
    monkeypatch.setattr(
        subprocess, "run", lambda command, **more: calls.append(command) or run(command, **more)
    )
    launcher._seen = 0
    for job in jobs:
        launcher.look(job.id, 1)
    assert [command[0] for command in calls] == ["squeue"]
