"""A stand-in for the command that trains, and passes of a reconciler over it."""

import asyncio
import json
import os
import time
from collections.abc import Callable

from rondo.base.storage.home import jobs_dir
from rondo.control.config import JobsConfig
from rondo.control.jobs.book import JobBook, JobRow
from rondo.control.jobs.launchers.launcher import Launcher
from rondo.control.jobs.reconcile import Reconciler
from rondo.jobs.spec import JobSpec

PROGRAM = """
import json, os, pathlib, signal, sys, time
mode, job = sys.argv[1:]
folder = pathlib.Path(os.environ["RONDO_HOME"]) / "jobs" / job
folder.mkdir(parents=True, exist_ok=True)
def write(path, what):
    new = pathlib.Path(str(path) + ".new")
    new.write_text(json.dumps(what))
    new.rename(path)
def status(state):
    write(folder / "status.json", {"state": state, "step": 1, "time": time.time()})
def report(**facts):
    write(os.environ["RONDO_JOB_REPORT"], facts)
def pause(*_):
    if mode != "stubborn":
        status("paused"); os._exit(0)
signal.signal(signal.SIGTERM, pause)
if mode == "wrong":
    report(error={"message": "train.lr must be positive", "param": "train.lr", "code": "bad"}); sys.exit(2)
if mode == "rank":
    report(hash=job, error={"message": "no file", "param": None, "code": "lost", "exit_code": 4}); sys.exit(1)
report(hash=job)
tries = folder / "tries"
tries.write_text(tries.read_text() + "x" if tries.exists() else "x")
if mode == "crash" or (mode == "crash once" and len(tries.read_text()) == 1):
    print("out of luck"); sys.exit(1)
if mode == "killed":
    os.kill(os.getpid(), signal.SIGKILL)
if (folder / "code").exists():
    sys.exit(int((folder / "code").read_text()))
if mode == "busy" and len(tries.read_text()) < 6:
    report(hash=job, error={"message": "Another process works.", "param": None, "code": "job_is_running"})
    sys.exit(5)
if mode in ("long", "stubborn") and not (folder / "go").exists():
    status("running")
    while not (folder / "go").exists(): time.sleep(0.02)
status("succeeded")
"""

CONFIG = JobsConfig(retry_seconds=0, grace_seconds=0.5)


def put_status(name: str, state: str, age: float) -> None:
    (jobs_dir() / name).mkdir(parents=True)
    text = json.dumps({"state": state, "step": 1, "time": time.time() - age})
    file = jobs_dir() / name / "status.json"
    file.write_text(text)
    os.utime(file, (time.time() - age,) * 2)


def spec(mode: str, name: str = "a") -> JobSpec:
    return JobSpec("sft", {"model": name, "data": mode})


def until(
    book: JobBook,
    launcher: Launcher,
    true: Callable[[], bool],
    config: JobsConfig = CONFIG,
    limit: float = 120,
) -> None:
    """Passes of a reconciler until a condition is met; a new one each time, as after a crash of the gateway."""
    begin = time.monotonic()

    async def passes() -> None:
        reconciler = Reconciler(book, {launcher.name.partition("@")[0]: launcher}, config)
        while not true():
            past = time.monotonic() - begin
            assert past < limit, "the condition was not met"
            await reconciler.reconcile()
            await asyncio.sleep(min(max(0.02, past / 10), 0.2))

    asyncio.run(passes())


def submit(book: JobBook, mode: str, name: str = "a", owner: str = "me") -> JobRow:
    return book.submit(spec(mode, name), owner).result()[0]


def state(book: JobBook, job: JobRow) -> str:
    return book.get(job.id).result().state
