"""Training as a service: lists and passes of the reconciler with 10,000 jobs, time from a submission to the first
training step, first request to a fresh hash, and 100 hot adapters beside the base through the gateway.

A LoRA job of the 4M-parameter model is submitted to `rondo up`, and the model that it leaves is asked at once. CPU
seconds are those of the processes that the figure names; other work on the machine changes them less than the times.
"""

import asyncio
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import aiohttp
import httpx
import sqlalchemy as sa

from adapters import ADAPTERS, write_adapters
from common import Report, alternate, arguments, free_port, median, say
from gateways import cpu_of
from rondo.base.ids import new_id
from rondo.base.storage.files import write_json
from rondo.control.config import JobsConfig
from rondo.control.jobs.book import JobBook
from rondo.control.jobs.launchers.launcher import Attempt, AttemptState, Node
from rondo.control.jobs.reconcile import Reconciler
from rondo.control.store.store import Store
from rondo.control.tables import jobs
from rondo.gateway.routes.training.jobs import show
from rondo.jobs.spec import JobSpec
from small_model import write_small_model

JOBS, CONCURRENT, ANSWER = 10_000, 64, 48
SECONDS = 600


class Scheduler:
    """A scheduler whose answers cost nothing, so that the passes alone are measured."""

    def __init__(self, name: str, full: bool) -> None:
        self.name, self._full = name, full

    def check(self, spec: JobSpec) -> None: ...

    def room(self, active: Any, wanted: JobSpec) -> bool:
        return False

    def full(self, active: Any) -> bool:
        return self._full

    def start(self, attempt: Attempt) -> None:
        raise AssertionError

    def look(self, job: str, number: int) -> AttemptState:
        return AttemptState("running")

    def stop(self, job: str, number: int, *, kill: bool = False) -> bool:
        return True

    def nodes(self) -> list[Node]:
        return []


def fill(store: Store, count: int, state: str, launched: int = 0) -> None:
    """Replaces all jobs; the first `launched` ones are running."""
    now = time.time_ns() // 1000
    rows = []
    for number in range(count):
        spec = JobSpec(
            "sft", {"model": f"m{number % 50}", "lr": number * 1e-9, "data": f"/inputs/{number}.jsonl"}
        )
        running = number < launched
        own = "running" if running else state
        rows.append(
            {
                "id": new_id("job")[:28],
                "owner": f"key-{number % 20}",
                "digest": f"{number:064x}",
                "kind": "sft",
                "model": spec.model,
                "spec": spec.to_json(),
                "state": own,
                "attempt": int(running),
                "failures": 0,
                "launcher": "busy",
                "launched": running,
                "hash": f"{number:064x}" if own in ("running", "succeeded") else None,
                "not_before": 0,
                "created": now,
                "ended": now if own == "succeeded" else None,
            }
        )

    def work(db: sa.Connection) -> None:
        db.execute(sa.delete(jobs))
        db.execute(sa.insert(jobs), rows)

    store.write(work).result()


def timed(runs: int, work: Callable[[], Awaitable[Any]]) -> tuple[float, float]:
    """Median milliseconds and CPU milliseconds."""

    async def measure() -> list[tuple[float, float]]:
        await work()
        found = []
        for _ in range(runs):
            begin, cpu = time.perf_counter(), time.process_time()
            await work()
            found.append(((time.perf_counter() - begin) * 1000, (time.process_time() - cpu) * 1000))
        return found

    walls, cpus = zip(*asyncio.run(measure()), strict=True)
    return median(list(walls)), median(list(cpus))


def control_plane(report: Report, folder: Path, quick: bool) -> None:
    runs, count = (3, 1000) if quick else (15, JOBS)
    store = Store(folder / "store.db")
    book = JobBook(store)

    async def listed() -> None:
        rows = await book.all("key-3", limit=21)
        await asyncio.to_thread(lambda: [show(row).model_dump() for row in rows[:20]])

    def passes(full: bool) -> Callable[[], Awaitable[None]]:
        reconciler = Reconciler(book, {"busy": Scheduler("busy", full)}, JobsConfig())
        return reconciler.reconcile

    cases = [
        ("a list of 20", "succeeded", 0, listed),
        ("a pass, all ended", "succeeded", 0, passes(False)),
        ("a pass, all wait, no slot", "queued", 2, passes(True)),
        ("a pass, all wait, GPUs free", "queued", 2, passes(False)),
        ("a pass, 100 run", "succeeded", 100, passes(False)),
    ]
    for name, state, launched, work in cases:
        fill(store, count, state, launched)
        wall, cpu = timed(runs, work)
        say(f"{name}: {wall:.1f} ms, {cpu:.1f} ms of CPU")
        report.ours[f"{count:,} jobs: {name}, ms"] = wall
        report.ours[f"{count:,} jobs: {name}, CPU ms"] = cpu
        report.limit[f"{count:,} jobs: {name}, CPU ms"] = 20 if "list" in name else 100
    store.close()


class Up:
    """`rondo up` with the base model, and its URL."""

    def __init__(self, home: Path, base: Path) -> None:
        port = free_port()
        self.url, self.home = f"http://127.0.0.1:{port}", home
        line = [sys.executable, "-m", "rondo.cli", "up", str(base), f"--port={port}"]
        line += [f"--engine.max_loaded_adapters={ADAPTERS}", "--gateway.jobs.poll_seconds=0.2"]
        self.process = subprocess.Popen(
            line,
            env=os.environ | {"RONDO_HOME": str(home)},
            stdout=subprocess.DEVNULL,
            stderr=(home / "up.log").open("ab"),
            start_new_session=True,
        )

    def wait(self, model: str) -> None:
        body = {"model": model, "prompt": "abc", "max_tokens": 1}
        end = time.monotonic() + SECONDS
        while time.monotonic() < end:
            try:
                if httpx.post(f"{self.url}/v1/completions", json=body, timeout=SECONDS).status_code == 200:
                    return
            except httpx.HTTPError:
                pass
            time.sleep(0.1)
        raise SystemExit(f"{model} does not answer: see {self.home}/up.log")

    def call(self, method: str, path: str, **more: Any) -> Any:
        answer = httpx.request(method, self.url + path, timeout=SECONDS, **more)
        if not answer.is_success:
            raise SystemExit(f"{method} {path}: {answer.status_code} {answer.text}")
        return answer.json()

    def cpu(self) -> float:
        return cpu_of(self.process.pid)

    def end(self) -> None:
        self.process.send_signal(signal.SIGTERM)
        self.process.wait()


def submission(report: Report, up: Up, number: int) -> tuple[float, float, float, float]:
    """Seconds and CPU seconds from the submission to the first step, and of the first request to the model."""
    record = {"messages": [{"role": "user", "content": f"a{number}"}, {"role": "assistant", "content": "b"}]}
    lines = (json.dumps(record) + "\n").encode() * 64
    file = up.call("POST", "/v1/files", files={"file": ("a.jsonl", lines)}, data={"purpose": "fine-tune"})
    settings = {"adapter.kind": "lora", "adapter.r": 8, "epochs": 4, "examples_per_step": 8}
    body = {"kind": "sft", "model": "base", "data": file["id"], "settings": settings}
    begin, cpu = time.perf_counter(), up.cpu()
    job = up.call("POST", "/v1/jobs", json=body)["id"]
    used = cpu
    while not up.call("GET", f"/v1/jobs/{job}/metrics")["data"]:
        used = max(used, up.cpu())
        time.sleep(0.02)
    step = time.perf_counter() - begin, max(used, up.cpu()) - cpu
    while (facts := up.call("GET", f"/v1/jobs/{job}"))["state"] not in ("succeeded", "failed"):
        time.sleep(0.05)
    if facts["state"] == "failed":
        raise SystemExit(facts["error"])
    cpu, begin = up.cpu(), time.perf_counter()
    body = {"model": facts["hash"], "prompt": "abc", "max_tokens": 1}
    up.call("POST", "/v1/completions", json=body)
    return *step, time.perf_counter() - begin, up.cpu() - cpu


def hot_adapters(report: Report, up: Up, quick: bool) -> None:
    names = [f"{number:064x}" for number in range(1, ADAPTERS + 1)]
    requests, runs = (64, 1) if quick else (384, 5)
    for name in names:
        up.wait(name)
    rng = random.Random(1)
    lengths = [rng.randrange(ANSWER // 2, ANSWER + 1) for _ in range(requests)]

    def side(models: list[str]) -> Callable[[], float]:
        def run() -> float:
            before, begin = up.cpu(), time.perf_counter()
            asyncio.run(load(up.url, list(zip(models, lengths, strict=True))))
            say(f"{time.perf_counter() - begin:.1f} s, {up.cpu() - before:.1f} s of CPU")
            cpu.setdefault(models[0], []).append(up.cpu() - before)
            return sum(lengths) / (time.perf_counter() - begin)

        return run

    cpu = dict[str, list[float]]()
    own, base = [rng.choice(names) for _ in range(requests)], ["base"] * requests
    sides = {"adapters": side(own), "base": side(base)}
    for each in sides.values():
        each()
    cpu.clear()
    rates = {name: median(values) for name, values in alternate(runs, **sides).items()}
    report.ours["tokens/s, base"] = rates["base"]
    report.ours[f"tokens/s, {ADAPTERS} adapters"] = rates["adapters"]
    report.ratios[f"{ADAPTERS} adapters to the base"] = rates["adapters"] / rates["base"]
    report.ratios["the same by CPU time"] = median(cpu["base"]) / median(cpu[own[0]])


async def load(url: str, wanted: list[tuple[str, int]]) -> None:
    places = asyncio.Semaphore(CONCURRENT)
    timeout = aiohttp.ClientTimeout(total=SECONDS)
    async with aiohttp.ClientSession(timeout=timeout, connector=aiohttp.TCPConnector(limit=0)) as session:

        async def ask(model: str, length: int) -> None:
            body = {"model": model, "prompt": "abc def", "max_tokens": length, "ignore_eos": True}
            async with places, session.post(f"{url}/v1/completions", json=body) as answer:
                found = await answer.json()
                assert found["usage"]["completion_tokens"] == length, found

        await asyncio.gather(*(ask(*each) for each in wanted))


def write_jobs(home: Path, base: Path) -> None:
    """Finished LoRA jobs, one for each adapter."""
    with tempfile.TemporaryDirectory() as folder:
        write_adapters(base, Path(folder), "all-linear")
        for number in range(ADAPTERS):
            job = home / "jobs" / f"{number + 1:064x}"
            job.mkdir(parents=True)
            (Path(folder) / f"adapter{number}").rename(job / "adapter")
            write_json(job / "spec.json", {"kind": "sft", "config": {"adapter": {"kind": "lora"}}})
            write_json(job / "origin.json", {"model": "base", "base": str(base)})
            write_json(job / "status.json", {"state": "succeeded", "step": 1})


def main() -> None:
    options = arguments(__doc__.splitlines()[0])
    report = Report("jobs")
    with tempfile.TemporaryDirectory() as root:
        home = Path(root) / "home"
        os.environ["RONDO_HOME"] = str(home)
        (home / "models").mkdir(parents=True)
        control_plane(report, Path(root), options.quick)
        base = write_small_model(home / "models" / "base")
        write_jobs(home, base)
        up = Up(home, base)
        try:
            up.wait("base")
            runs = [submission(report, up, number) for number in range(1 if options.quick else 3)]
            steps, step_cpus, requests, request_cpus = (
                median(list(each)) for each in zip(*runs, strict=True)
            )
            report.ours |= {"s to the first step": steps, "CPU s to the first step": step_cpus}
            report.ours |= {
                "ms, first request": requests * 1000,
                "CPU ms, first request": request_cpus * 1000,
            }
            report.limit |= {"s to the first step": 6, "CPU s to the first step": 6}
            report.limit |= {"ms, first request": 300, "CPU ms, first request": 300}
            hot_adapters(report, up, options.quick)
        finally:
            up.end()
    report.notes.append(f"load average {os.getloadavg()[0]:.1f}")
    report.show(options.json)


if __name__ == "__main__":
    main()
