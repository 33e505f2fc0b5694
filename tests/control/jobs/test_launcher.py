"""The local launcher: slots, GPUs, environment, and the end of all processes."""

import contextlib
import os
import re
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from control.jobs.running import CONFIG, state, submit, until
from rondo.base.errors import InvalidRequest, NotFound
from rondo.control.jobs.book import DEPTH, JobBook, JobRow
from rondo.control.jobs.launchers.command import command_of
from rondo.control.jobs.launchers.folder import AttemptFolder
from rondo.control.jobs.launchers.local import LocalLauncher
from rondo.control.jobs.launchers.members import members
from rondo.control.jobs.launchers.memory import used_memory
from rondo.control.jobs.order import in_turn, reserve, rooms_of
from rondo.jobs import attempt
from rondo.jobs.spec import JobSpec


def test_slots_are_shared_between_owners(book: JobBook, launcher: LocalLauncher) -> None:
    mine = [submit(book, "long", f"mine-{number}") for number in range(3)]
    other = submit(book, "long", "other", "another")
    until(book, launcher, lambda: state(book, mine[0]) == "running" and state(book, other) == "running")
    assert [state(book, job) for job in mine[1:]] == ["queued", "queued"]


def test_gpus_are_counted() -> None:
    launcher = LocalLauncher(slots=1, gpus=(0, 1, 2))
    two, cpu = JobSpec("sft", {}, resources={"gpus": 2}), JobSpec("sft", {})
    assert launcher.room([], two)
    assert not launcher.room([two], two)
    assert launcher.room([two], cpu)
    assert not launcher.room([cpu], cpu)


def test_each_job_has_gpus_of_its_own(book: JobBook, launcher: LocalLauncher) -> None:
    launcher.gpus = (0, 1, 4)
    run = launcher.command
    launcher.command = lambda spec: [
        "sh",
        "-c",
        'echo "gpus $CUDA_VISIBLE_DEVICES"; exec "$@"',
        "sh",
        *run(spec),
    ]
    specs = [
        JobSpec("sft", {"model": name, "data": "long"}, resources={"gpus": gpus})
        for name, gpus in (("a", 1), ("b", 2))
    ]
    first, second = (book.submit(each, "me").result()[0] for each in specs)
    until(book, launcher, lambda: state(book, first) == state(book, second) == "running")
    assert "gpus 0\n" in AttemptFolder.of(first.id, 1).output.read_text()
    assert "gpus 1,4\n" in AttemptFolder.of(second.id, 1).output.read_text()


def test_a_job_that_exceeds_its_memory_is_ended(book: JobBook, launcher: LocalLauncher) -> None:
    hog = "import time; kept = b'x' * (300 << 20); time.sleep(300)"
    launcher.command = lambda spec: [sys.executable, "-S", "-c", hog]
    wanted = JobSpec("sft", {"model": "a"}, resources={"memory": 100})
    job = book.submit(wanted, "me").result()[0]
    until(book, launcher, lambda: state(book, job) == "failed", limit=600)
    row = book.get(job.id).result()
    assert row.failures == CONFIG.attempts
    assert re.search(r"it used \d{3} MiB of memory, and resources.memory is 100\.", str(row.error))
    assert not [each for each in members() if each[0] == job.id]


def test_shared_memory_is_counted_once(tmp_path: Path) -> None:
    fork = (
        "import os, time; kept = b'x' * (100 << 20); os.fork(); os.fork(); print(flush=True); time.sleep(300)"
    )
    with subprocess.Popen(
        [sys.executable, "-S", "-c", fork], stdout=subprocess.PIPE, start_new_session=True
    ) as process:
        assert process.stdout is not None
        for _ in range(4):
            process.stdout.readline()
        pids = [int(each.name) for each in Path("/proc").glob("[0-9]*") if _group(each) == process.pid]
        assert len(pids) == 4
        assert used_memory(pids, 1000) > 400
        assert used_memory(pids, 200) < 200
        os.killpg(process.pid, signal.SIGKILL)


def _group(folder: Path) -> int:
    with contextlib.suppress(OSError, IndexError):
        return int((folder / "stat").read_text().rpartition(")")[2].split()[2])
    return 0


def test_cores_of_a_job(book: JobBook, launcher: LocalLauncher) -> None:
    told = "import os, time; print(os.environ['OMP_NUM_THREADS'], *os.sched_getaffinity(0), flush=True)"
    told += "; print(open('/proc/self/oom_score_adj').read()); time.sleep(300)"
    launcher.command = lambda spec: [sys.executable, "-S", "-u", "-c", told]
    jobs = [
        book.submit(JobSpec("sft", {"model": name}, resources={"cpus": 1}), "me").result()[0] for name in "ab"
    ]
    output = [AttemptFolder.of(job.id, 1).output for job in jobs]

    def lines() -> list[str]:
        return [line for file in output if file.exists() for line in file.read_text().split("\n") if line]

    until(book, launcher, lambda: len(lines()) == 4)
    assert len({lines()[0], lines()[2]}) == min(len(os.sched_getaffinity(0)), 2), "each has a core of its own"
    assert all(re.fullmatch(r"1 \d+", each) for each in lines()[::2])
    assert lines()[1::2] == ["500", "500"], "the kernel kills a job first"


@pytest.mark.parametrize("field", ["memory", "cpus"])
def test_requests_beyond_the_machine(field: str, launcher: LocalLauncher) -> None:
    with pytest.raises(InvalidRequest, match=rf"lower resources\.{field}"):
        launcher.check(JobSpec("sft", {}, resources={field: 1 << 30}))


def test_a_process_has_no_key_of_the_platform(
    book: JobBook, launcher: LocalLauncher, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RONDO_GATEWAY_ENGINE_KEY", "hidden")
    launcher.command = lambda spec: ["env"]
    job = submit(book, "short")
    until(book, launcher, lambda: AttemptFolder.of(job.id, 1).code == 0)
    output = AttemptFolder.of(job.id, 1).output.read_text()
    assert "RONDO_HOME" in output
    assert "hidden" not in output


def test_the_command_of_a_job() -> None:
    job = JobSpec("sft", {"model": "base", "lr": 1e-4, "data": ["a", "b"]}, resources={"ranks": 2})
    command = command_of(job)
    assert command[1:3] == ["-m", "torch.distributed.run"]
    assert command[-5:] == [
        "train",
        "sft",
        "--train.model=base",
        "--train.lr=0.0001",
        '--train.data=["a", "b"]',
    ]
    assert JobSpec.from_json(job.to_json()) == job
    assert JobSpec("sft", {"name": "x"}).digest == JobSpec("sft", {}).digest
    with pytest.raises(InvalidRequest, match="kind is one of"):
        JobSpec("other", {})  # type: ignore[arg-type]


@pytest.mark.parametrize("lost", [True, False])
def test_all_processes_of_an_attempt_end(book: JobBook, launcher: LocalLauncher, lost: bool) -> None:
    """Ranks have sessions of their own; and the shell alone may be killed."""
    run = launcher.command
    launcher.command = lambda spec: ["sh", "-c", 'setsid sleep 600 & exec "$@"', "sh", *run(spec)]
    job = submit(book, "stubborn")
    until(book, launcher, lambda: state(book, job) == "running")
    key = (job.id, 1)
    until(book, launcher, lambda: len(members()[key]) == 3)
    if lost:
        process = AttemptFolder.of(*key).process()
        assert process is not None
        os.kill(process[0], signal.SIGKILL)
        until(book, launcher, lambda: book.get(job.id).result().attempt == 2)
    else:
        book.cancel(job.id).result()
        until(book, launcher, lambda: not book.get(job.id).result().launched)
    assert key not in members()


def test_the_first_error_of_several_ranks_stays(
    book: JobBook, launcher: LocalLauncher, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(attempt.VARIABLE, str(tmp_path / "report.json"))
    attempt.report(hash="a")
    attempt.report_error(NotFound("no file", code="lost"), 4)
    attempt.report_error(ValueError("another rank has ended"), 70)
    expected = {"message": "no file", "param": None, "code": "lost", "exit_code": 4}
    assert attempt.read_report(tmp_path / "report.json") == {"hash": "a", "error": expected}
    job = submit(book, "rank")
    until(book, launcher, lambda: state(book, job) == "failed")
    row = book.get(job.id).result()
    assert (row.attempt, row.error) == (1, {"message": "no file", "param": None, "code": "lost"})


def gpu_jobs(book: JobBook, *wanted: tuple[str, int]) -> list[JobRow]:
    """Waiting jobs by owner and GPUs."""
    for number, (owner, gpus) in enumerate(wanted):
        book.submit(JobSpec("sft", {"data": str(number)}, resources={"gpus": gpus}), owner).result()
    return book.waiting(["local"]).result()


def test_owners_take_turns(book: JobBook) -> None:
    rows = gpu_jobs(book, ("a", 0), ("a", 0), ("a", 0), ("b", 0), ("b", 0))
    shares = Counter({"a": 1})
    order = []
    for row in in_turn(rows, shares):
        order.append(row.owner)
        shares[row.owner] += 1
    assert order == ["b", "a", "b", "a", "a"]


def test_small_gpu_jobs_do_not_overtake_a_large_one_for_ever(book: JobBook) -> None:
    launcher = LocalLauncher(slots=1, gpus=(0, 1, 2))
    active, older, large, small, cpu = gpu_jobs(book, ("a", 1), ("a", 1), ("a", 2), ("b", 1), ("b", 0))
    rooms = rooms_of({"local": launcher}, [active])
    room = rooms["local"]
    reserve(rooms, [older, large, small, cpu])
    assert not room.fits(small), "two GPUs are free, and the older job waits for both"
    assert room.fits(cpu)
    assert room.fits(older), "it came before"
    assert room.fits(large)
    room.add(large)
    room.add(cpu)
    assert not room.fits(small)
    assert room.full
    assert rooms_of({"local": launcher}, [active, large, cpu]) == {}, "no waiting row is looked at"


def test_the_signal_that_killed_a_process_is_named(book: JobBook, launcher: LocalLauncher) -> None:
    job = submit(book, "killed")
    until(book, launcher, lambda: state(book, job) == "failed")
    error = book.get(job.id).result().error
    assert error is not None
    assert "the process was killed by signal 9." in error["message"]


def test_a_pass_considers_some_jobs_of_each_owner(book: JobBook) -> None:
    for number in range(DEPTH + 5):
        submit(book, "short", f"a{number}", owner="many")
    submit(book, "short", "b", owner="few")
    waiting = book.waiting(["local"]).result()
    assert len(waiting) == DEPTH + 1
    assert [waiting[0].model, waiting[-1].model] == ["a0", "b"]
