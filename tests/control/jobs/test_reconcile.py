"""Passes of the reconciler over jobs that end, crash, pause and are cancelled."""

import asyncio
import errno
import os
import signal
import threading
import time
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from control.jobs.running import CONFIG, put_status, spec, state, submit, until
from rondo.base.errors import Conflict, NotFound
from rondo.base.storage.files import storage_error
from rondo.base.storage.home import jobs_dir
from rondo.control.config import JobsConfig
from rondo.control.jobs.book import JobBook, JobRow
from rondo.control.jobs.launchers.folder import AttemptFolder, is_alive
from rondo.control.jobs.launchers.local import LocalLauncher
from rondo.control.jobs.reconcile import Reconciler
from rondo.control.store.pending import Pending
from rondo.control.store.store import Store
from rondo.control.tables import jobs as jobs_table
from rondo.jobs.folders import aliases_of
from rondo.jobs.spec import JobSpec
from support.waiting import wait_until


def test_a_job_from_submission_to_success(book: JobBook, launcher: LocalLauncher) -> None:
    job = submit(book, "short")
    assert (job.state, job.attempt, job.launched) == ("queued", 0, False)
    until(book, launcher, lambda: state(book, job) == "succeeded")
    row = book.get(job.id).result()
    assert (row.hash, row.attempt, row.launched, row.final) == ("a", 1, False, True)
    assert row.ended is not None
    messages = [event.message for event in book.events(job.id).result()]
    assert messages[-2:] == ["Job starts.", f"Job {job.id} was submitted."]
    assert messages[0] == "Job succeeded."


def test_a_submitted_and_a_cancelled_job_wait_for_no_interval(book: JobBook, launcher: LocalLauncher) -> None:
    begun = threading.Event()

    def passes() -> None:
        config = JobsConfig(grace_seconds=0.5, poll_seconds=3600)

        async def run() -> None:
            task = asyncio.create_task(Reconciler(book, {"local": launcher}, config).run())
            await asyncio.sleep(0.5)
            begun.set()
            await asyncio.to_thread(over.wait)
            task.cancel()

        asyncio.run(run())

    over = threading.Event()
    thread = threading.Thread(target=passes)
    thread.start()
    try:
        assert begun.wait(60)
        job = submit(book, "long")
        wait_until(lambda: AttemptFolder.of(job.id, 1).process() is not None, 60)
        process = AttemptFolder.of(job.id, 1).process()
        assert process is not None
        book.cancel(job.id).result()
        wait_until(lambda: not is_alive(*process), 60)
    finally:
        over.set()
        thread.join()


def test_wrong_settings_fail_at_once_with_the_field(book: JobBook, launcher: LocalLauncher) -> None:
    job = submit(book, "wrong")
    until(book, launcher, lambda: state(book, job) == "failed")
    row = book.get(job.id).result()
    assert row.attempt == 1
    assert row.error == {"message": "train.lr must be positive", "param": "train.lr", "code": "bad"}


def test_a_crash_is_retried_and_then_fails_with_the_last_line(book: JobBook, launcher: LocalLauncher) -> None:
    once, always = submit(book, "crash once", "once"), submit(book, "crash", "always")
    until(book, launcher, lambda: state(book, once) == "succeeded" and state(book, always) == "failed")
    assert book.get(once.id).result().attempt == 2
    row = book.get(always.id).result()
    assert row.attempt == CONFIG.attempts
    assert row.error is not None
    assert "exit code 1. out of luck" in row.error["message"]


def test_a_killed_process_is_started_again(book: JobBook, launcher: LocalLauncher) -> None:
    job = submit(book, "long")
    until(book, launcher, lambda: state(book, job) == "running")
    process = AttemptFolder.of(job.id, 1).process()
    assert process is not None
    os.killpg(process[0], signal.SIGKILL)
    until(book, launcher, lambda: book.get(job.id).result().attempt == 2)
    (jobs_dir() / "a" / "go").touch()
    until(book, launcher, lambda: state(book, job) == "succeeded")


def test_a_cancelled_job_ends_whatever_its_process_reports(book: JobBook, launcher: LocalLauncher) -> None:
    job = submit(book, "stubborn")
    until(book, launcher, lambda: state(book, job) == "running")
    assert book.cancel(job.id).result().state == "cancelled"
    assert book.cancel(job.id).result().state == "cancelled", "cancelling twice is no error"
    process = AttemptFolder.of(job.id, 1).process()
    assert process is not None
    until(book, launcher, lambda: not book.get(job.id).result().launched)
    assert not is_alive(*process), "a process that ignores SIGTERM is killed"
    assert state(book, job) == "cancelled"
    with pytest.raises(Conflict, match="is cancelled and cannot become queued"):
        book.resume(job.id).result()
    assert book.delete(job.id).result().id == job.id
    with pytest.raises(NotFound):
        book.get(job.id).result()


def test_a_damaged_file_of_one_job_delays_no_other(book: JobBook, launcher: LocalLauncher) -> None:
    damaged, well = submit(book, "long", "damaged"), submit(book, "long", "well")
    until(book, launcher, lambda: state(book, damaged) == state(book, well) == "running")
    (jobs_dir() / "damaged" / "status.json").write_text("{")
    process = AttemptFolder.of(damaged.id, 1).process()
    assert process is not None
    os.killpg(process[0], signal.SIGKILL)
    (jobs_dir() / "well" / "go").touch()
    until(book, launcher, lambda: state(book, well) == "succeeded")


def test_pause_and_resume(book: JobBook, launcher: LocalLauncher) -> None:
    job = submit(book, "long")
    until(book, launcher, lambda: state(book, job) == "running")
    with pytest.raises(Conflict, match="cancel it first"):
        book.delete(job.id).result()
    book.pause(job.id).result()
    until(book, launcher, lambda: state(book, job) == "paused")
    (jobs_dir() / "a" / "go").touch()
    until(book, launcher, lambda: True)
    assert state(book, job) == "paused"
    book.resume(job.id).result()
    until(book, launcher, lambda: state(book, job) == "succeeded")
    assert book.get(job.id).result().attempt == 2


def test_a_job_that_was_asked_to_end_continues_later(book: JobBook, launcher: LocalLauncher) -> None:
    """A scheduler's time limit, or an operator's SIGTERM: no failure."""
    job = submit(book, "long")
    until(book, launcher, lambda: state(book, job) == "running")
    launcher.stop(job.id, 1)
    until(book, launcher, lambda: book.get(job.id).result().attempt == 2)
    (jobs_dir() / "a" / "go").touch()
    until(book, launcher, lambda: state(book, job) == "succeeded")
    assert (book.get(job.id).result().attempt, book.get(job.id).result().failures) == (2, 0)


def test_an_error_of_one_job_ends_no_pass(book: JobBook, launcher: LocalLauncher) -> None:
    with_nul, unreadable, well = submit(book, "short\0"), submit(book, "x", "b"), submit(book, "short", "c")
    damage = sa.update(jobs_table).where(jobs_table.c.id == unreadable.id).values(spec='{"other": 1}')
    book.store.write(lambda db: db.execute(damage).rowcount).result()
    until(book, launcher, lambda: state(book, well) == "succeeded")
    until(book, launcher, lambda: state(book, with_nul) == state(book, unreadable) == "failed")
    error = book.get(with_nul.id).result().error
    assert error is not None
    assert "could not start: ValueError('embedded null byte')" in error["message"]


def test_an_error_of_a_pass_does_not_end_the_reconciler(
    book: JobBook, launcher: LocalLauncher, monkeypatch: pytest.MonkeyPatch
) -> None:
    job, launched, errors = submit(book, "short"), book.launched, [TypeError("one"), ValueError("two")]

    def failing() -> Pending[list[JobRow]]:
        if errors:
            raise errors.pop()
        return launched()

    monkeypatch.setattr(book, "launched", failing)

    def wait() -> None:
        deadline = time.monotonic() + 60
        while state(book, job) != "succeeded":
            assert time.monotonic() < deadline
            time.sleep(0.02)

    async def passes() -> None:
        config = JobsConfig(poll_seconds=0.02)
        task = asyncio.create_task(Reconciler(book, {"local": launcher}, config).run())
        await asyncio.to_thread(wait)
        task.cancel()

    asyncio.run(passes())
    assert not errors


def test_the_state_of_an_attempt_before_is_not_that_of_this_one(
    book: JobBook, launcher: LocalLauncher
) -> None:
    put_status("a", "paused", 60)
    put_status("b", "paused", 0)
    (jobs_dir() / "b" / "code").write_text("4")
    old, permanent = submit(book, "crash", "a"), submit(book, "short", "b")
    until(book, launcher, lambda: state(book, old) == state(book, permanent) == "failed")
    assert book.get(old.id).result().attempt == CONFIG.attempts
    assert book.get(permanent.id).result().attempt == 1


def test_a_job_that_had_succeeded_before_succeeds_again(book: JobBook, launcher: LocalLauncher) -> None:
    put_status("a", "succeeded", 60)
    (jobs_dir() / "a" / "code").write_text("0")
    job = submit(book, "short")
    until(book, launcher, lambda: state(book, job) == "succeeded")


def test_a_busy_folder_is_no_failure(book: JobBook, launcher: LocalLauncher) -> None:
    job = submit(book, "busy")
    until(book, launcher, lambda: state(book, job) == "succeeded")
    row = book.get(job.id).result()
    assert (row.attempt, row.failures) == (6, 0)


def test_jobs_of_another_place_are_left_alone(book: JobBook, launcher: LocalLauncher) -> None:
    job = book.submit(spec("short"), "me", launcher="local@another").result()[0]
    book.move(job, "starting", "starts", attempt=1, launched=True).result()
    passes = iter(range(3))
    until(book, launcher, lambda: next(passes, None) is None)
    assert state(book, job) == "starting"


def test_the_duty_is_that_of_a_launcher_and_is_renewed_before_a_start(
    book: JobBook, launcher: LocalLauncher
) -> None:
    job, second = submit(book, "short"), Store(book.store.place)
    duty = f"jobs {launcher.name}"
    assert second.claim(duty, 600).result()
    passes = iter(range(3))
    until(book, launcher, lambda: next(passes, None) is None)
    assert state(book, job) == "queued"
    launcher.name = "local@another"
    until(book, launcher, lambda: state(book, job) == "succeeded")
    second.close()


def test_an_attempt_without_a_start_is_no_failure(book: JobBook, launcher: LocalLauncher) -> None:
    job = submit(book, "short")
    book.move(job, "starting", "Job starts.", attempt=1, launched=True).result()
    until(book, launcher, lambda: state(book, job) == "succeeded")
    row = book.get(job.id).result()
    assert (row.attempt, row.failures) == (2, 0)
    assert any("the process was never started" in event.message for event in book.events(job.id).result())


def test_a_signal_that_was_not_sent_is_sent_later(
    book: JobBook, launcher: LocalLauncher, monkeypatch: pytest.MonkeyPatch
) -> None:
    job, stop, calls = submit(book, "long"), launcher.stop, list[bool]()

    def late(job: str, number: int, *, kill: bool = False) -> bool:
        calls.append(kill)
        return len(calls) > 2 and stop(job, number, kill=kill)

    monkeypatch.setattr(launcher, "stop", late)
    until(book, launcher, lambda: state(book, job) == "running")
    book.cancel(job.id).result()
    until(book, launcher, lambda: not book.get(job.id).result().launched, JobsConfig(grace_seconds=600))
    assert calls == [False, False, False]


def test_a_job_cancelled_at_its_end_has_no_alias(
    book: JobBook, launcher: LocalLauncher, monkeypatch: pytest.MonkeyPatch
) -> None:
    job, move, seen = book.submit(spec("short"), "me", result="ft:{id}").result()[0], book.move, list[str]()

    def cancelled_before(row: JobRow, to: str, message: str, **facts: object) -> Pending[JobRow | None]:
        if to == "succeeded":
            seen.extend(aliases_of(jobs_dir() / "a"))
            book.cancel(row.id).result()
        return move(row, to, message, **facts)  # type: ignore[arg-type]

    monkeypatch.setattr(book, "move", cancelled_before)
    until(book, launcher, lambda: bool(seen))
    assert seen == [job.result]
    assert aliases_of(jobs_dir() / "a") == []
    until(book, launcher, lambda: not book.get(job.id).result().launched)
    assert state(book, job) == "cancelled"


class Killed(BaseException):
    pass


def test_a_reconciler_killed_at_any_write_loses_and_repeats_nothing(
    book: JobBook, launcher: LocalLauncher, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = book.store.write

    def succeeded(job: JobRow) -> bool:
        return state(book, job) == "succeeded"

    for number in range(14):
        name, left = f"job-{number}", number // 2

        def killed(work: Any, applied: bool = number % 2 == 1) -> Pending[Any]:
            nonlocal left
            left -= 1
            if left < 0 and applied:
                write(work).result()
            if left < 0:
                raise Killed
            return write(work)

        job = submit(book, "short", name)
        monkeypatch.setattr(book.store, "write", killed)
        with suppress(Killed):
            until(book, launcher, partial(succeeded, job))
        monkeypatch.setattr(book.store, "write", write)
        until(book, launcher, partial(succeeded, job))
        assert book.get(job.id).result().failures == 0
        assert (jobs_dir() / name / "tries").read_text() == "x", "the process runs once"


def test_a_full_disk_leaves_no_process_and_the_job_starts_later(
    book: JobBook, launcher: LocalLauncher, monkeypatch: pytest.MonkeyPatch
) -> None:
    job, keep, pids = submit(book, "short"), AttemptFolder.keep_process, list[int]()

    def full_at_first(folder: AttemptFolder, pid: int) -> None:
        pids.append(pid)
        if len(pids) == 1:
            raise storage_error(folder.path, OSError(errno.ENOSPC, "No space left on device"))
        keep(folder, pid)

    monkeypatch.setattr(AttemptFolder, "keep_process", full_at_first)
    until(book, launcher, lambda: state(book, job) == "succeeded")
    assert not Path(f"/proc/{pids[0]}").exists()
    assert any("No space left" in event.message for event in book.events(job.id).result())


def test_another_hostname_adopts_the_jobs_of_the_same_home(
    launcher: LocalLauncher, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("socket.gethostname", lambda: "another-container")
    assert LocalLauncher().name == launcher.name


def test_a_job_of_a_machine_that_was_restarted_continues(
    book: JobBook, launcher: LocalLauncher, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = submit(book, "long")
    until(book, launcher, lambda: state(book, job) == "running")
    launcher.stop(job.id, 1, kill=True)
    folder = AttemptFolder.of(job.id, 1)
    pid, begun, _ = (folder.path / "process").read_text().split()
    (folder.path / "process").write_text(f"{pid} {begun} another-boot")
    until(book, launcher, lambda: book.get(job.id).result().attempt == 2)
    (jobs_dir() / "a" / "go").touch()
    until(book, launcher, lambda: state(book, job) == "succeeded")
    assert book.get(job.id).result().failures == 0


def test_a_time_limit_lets_the_job_save_and_continue(book: JobBook, launcher: LocalLauncher) -> None:
    limited = JobSpec("sft", {"model": "a", "data": "long"}, resources={"time_limit": 8})
    job = book.submit(limited, "me").result()[0]
    until(book, launcher, lambda: book.get(job.id).result().attempt == 2)
    (jobs_dir() / "a" / "go").touch()
    until(book, launcher, lambda: state(book, job) == "succeeded")
    assert book.get(job.id).result().failures == 0


@pytest.mark.parametrize("jump", [86_400, -86_400])
def test_a_clock_that_jumps_neither_ends_nor_delays_a_job(
    book: JobBook, launcher: LocalLauncher, monkeypatch: pytest.MonkeyPatch, jump: int
) -> None:
    """Clocks of the gateway and of the jobs differ by a day; then the gateway's clock is corrected."""
    config = JobsConfig(retry_seconds=0.5, grace_seconds=0.5)
    limited = JobSpec("sft", {"model": "b", "data": "long"}, resources={"time_limit": 3600})
    real, real_ns = time.time, time.time_ns
    with monkeypatch.context() as patch:
        patch.setattr(time, "time", lambda: real() + jump)
        patch.setattr(time, "time_ns", lambda: real_ns() + jump * 10**9)
        crashed, long = submit(book, "crash once"), book.submit(limited, "me").result()[0]
        until(
            book,
            launcher,
            lambda: book.get(crashed.id).result().failures == 1 and state(book, long) == "running",
            config,
        )
    until(book, launcher, lambda: state(book, crashed) == "succeeded", config)
    row = book.get(long.id).result()
    assert (row.state, row.attempt, row.failures) == ("running", 1, 0)
    (jobs_dir() / "b" / "go").touch()
    until(book, launcher, lambda: state(book, long) == "succeeded", config)
    assert book.get(long.id).result().attempt == 1
