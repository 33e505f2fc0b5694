"""Faulty GPUs, silent ranks, and races between changes of a job's state."""

import json
import os
import threading
import time
from pathlib import Path

import pytest

from control.jobs.running import CONFIG, spec, state, until
from rondo.base.errors import Conflict
from rondo.base.storage.home import jobs_dir
from rondo.control.jobs.beats import late_ranks
from rondo.control.jobs.book import JobBook
from rondo.control.jobs.launchers.folder import AttemptFolder
from rondo.control.jobs.launchers.local import LocalLauncher
from rondo.jobs import attempt, health
from rondo.jobs.health import GpuFault
from rondo.jobs.spec import JobSpec

QUERY = """\
0, 00000000:1A:00.0, 0, 0
1, 00000000:3B:00.0, 2, 0
2, 00000000:5E:00.0, [N/A], [N/A]
3, 00000000:86:00.0, 0, 1
"""
KERNEL = """\
4,1,2,-;NVRM: Xid (PCI:0000:5e:00): 79, pid=1, GPU has fallen off the bus.
4,1,3,-;NVRM: Xid (PCI:0000:1a:00): 13, pid=2, Graphics Exception
"""
RACES = 1000


def test_faults_in_the_output_of_the_driver() -> None:
    assert [str(each) for each in health.of_query(QUERY)] == [
        "GPU 1: 2 uncorrected ECC errors",
        "GPU 3: row remapping failed",
    ]
    assert [str(each) for each in health.of_kernel(QUERY, KERNEL)] == [
        "GPU 2: Xid 79, the GPU has fallen off the bus"
    ]


def test_the_report_of_a_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "nvidia-smi"
    program.write_text(f"#!/bin/sh\ncat << E\n{QUERY}E\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setenv("SLURMD_NODENAME", "n1")
    monkeypatch.setattr(health, "kernel_messages", lambda: KERNEL)
    assert health.main(str(tmp_path)) == health.FAULTY
    assert [len(each) for each in health.read_reports(tmp_path).values()] == [3]
    program.write_text("#!/bin/sh\nsleep 60\n")
    monkeypatch.setattr(health, "SECONDS", 0.1)
    assert health.faults() == [GpuFault(None, "nvidia-smi does not respond within 0.1 s")]
    program.unlink()
    monkeypatch.setenv("PATH", str(tmp_path))
    assert health.faults() == []


def test_a_lost_gpu_is_a_fault_of_the_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program, lost = tmp_path / "nvidia-smi", "Unable to determine the device handle: GPU is lost."
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setattr(health, "kernel_messages", lambda: KERNEL)
    for rows in ("", QUERY.replace("5E", "5F")):
        program.write_text(f"#!/bin/sh\ncat << E\n{rows}E\necho '{lost}' >&2\nexit 15\n")
        program.chmod(0o755)
        assert [str(each) for each in health.faults()][-2:] == [
            "all GPUs: Xid 79, the GPU has fallen off the bus, at 0000:5e:00",
            f"all GPUs: nvidia-smi failed: {lost}",
        ]
    assert health.main(str(tmp_path)) == health.FAULTY
    assert [len(each) for each in health.read_reports(tmp_path).values()] == [4]


def test_a_machine_with_a_fault_takes_no_gpu_jobs(launcher: LocalLauncher) -> None:
    launcher.gpus, launcher.faults = (0, 1), lambda: [GpuFault(None, "nvidia-smi failed: GPU is lost")]
    assert not launcher.room([], JobSpec("sft", {"model": "a"}, resources={"gpus": 1}))
    (node,) = launcher.nodes()
    assert (node.state, node.reason) == ("draining", "all GPUs: nvidia-smi failed: GPU is lost")


def test_a_job_leaves_a_faulty_gpu(book: JobBook, launcher: LocalLauncher) -> None:
    broken: list[GpuFault] = []
    launcher.gpus, launcher.faults = (0, 1), lambda: broken
    wanted = JobSpec("sft", {"model": "a", "data": "long"}, resources={"gpus": 1})
    job = book.submit(wanted, "me").result()[0]
    until(book, launcher, lambda: state(book, job) == "running")
    broken.append(GpuFault(0, "Xid 79"))
    launcher._checked = -1e9
    until(book, launcher, lambda: book.get(job.id).result().attempt == 2)
    assert (AttemptFolder.of(job.id, 2).path / "gpus").read_text() == "1"
    (node,) = launcher.nodes()
    assert (node.state, node.reason) == ("draining", "GPU 0: Xid 79")
    assert not launcher.room([wanted], wanted)
    (jobs_dir() / "a" / "go").touch()
    until(book, launcher, lambda: state(book, job) == "succeeded")
    assert book.get(job.id).result().failures == 0


def test_heartbeats(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(attempt.VARIABLE, str(tmp_path / "report.json"))
    assert late_ranks(tmp_path, 60) == []
    with attempt.beating(0), attempt.beating(3):
        deadline = time.monotonic() + 60
        while len(list((tmp_path / "beats").glob("[0-9]"))) < 2:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        old = time.time() - 500
        os.utime(tmp_path / "beats" / "3", (old, old))
        assert [each.rank for each in late_ranks(tmp_path, 60)] in ([3], [])
    os.utime(tmp_path / "beats" / "3", (old, old))
    assert late_ranks(tmp_path, 60) == [], "a rank that has ended is not late"


def test_a_silent_rank_is_named_and_the_job_continues(book: JobBook, launcher: LocalLauncher) -> None:
    config = CONFIG.model_copy(update={"silent_seconds": 0.4})
    job = book.submit(spec("long"), "me").result()[0]
    until(book, launcher, lambda: state(book, job) == "running")
    beats = AttemptFolder.of(job.id, 1).path / "beats"
    beats.mkdir()
    (beats / "1").write_text(json.dumps({"host": "n2", "left": False}))
    until(book, launcher, lambda: book.get(job.id).result().attempt == 2, config)
    messages = [event.message for event in book.events(job.id).result()]
    assert "Late heartbeats: rank 1 on n2." in messages
    assert any("rank 1 on n2 (no heartbeat for" in each for each in messages)
    (jobs_dir() / "a" / "go").touch()
    until(book, launcher, lambda: state(book, job) == "succeeded")


def test_races_of_cancel_against_finish(book: JobBook) -> None:
    pending = [book.submit(spec("short", f"job-{number}"), "me") for number in range(RACES)]
    rows = [each.result()[0] for each in pending]
    started = [book.move(row, "starting", "starts", attempt=1, launched=True) for row in rows]
    running = [book.move(row, "running", "runs") for each in started if (row := each.result()) is not None]
    rows = [row for each in running if (row := each.result()) is not None]
    assert len(rows) == RACES
    finished, cancelled = set[str](), set[str]()

    def cancel() -> None:
        for row, answer in [(row, book.cancel(row.id)) for row in rows]:
            try:
                answer.result()
            except Conflict:
                continue
            cancelled.add(row.id)

    thread = threading.Thread(target=cancel)
    thread.start()
    for row, answer in [(row, book.move(row, "succeeded", "done", launched=False)) for row in reversed(rows)]:
        if answer.result() is not None:
            finished.add(row.id)
    thread.join()
    assert finished | cancelled == {row.id for row in rows}
    assert not finished & cancelled
    for row in book.all(limit=RACES).result():
        assert row.state == ("succeeded" if row.id in finished else "cancelled")


def test_races_of_submit_against_submit(book: JobBook) -> None:
    found = dict[int, list[tuple[str, bool]]]()

    def submit() -> None:
        pending = [book.submit(spec("short", f"job-{number}"), "me") for number in range(RACES)]
        for number, answer in enumerate(pending):
            row, new = answer.result()
            found.setdefault(number, []).append((row.id, new))

    threads = [threading.Thread(target=submit) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(pair[0][0] == pair[1][0] and pair[0][1] != pair[1][1] for pair in found.values())
    assert len(found) == RACES
