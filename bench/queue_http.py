"""The durable queue over HTTP: requests enqueued, and leased and finished, a second; pruning; two owners.

A gateway (two on PostgreSQL) is a process of its own; the load comes from this process, which has the other core.
Bodies have 200 bytes and 64 kB, results 500 bytes; each answer waits for the disk. `--rows N` waiting requests are in
the store for the second column.
"""

import argparse
import asyncio
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import aiohttp
import msgspec

from common import Report, arguments, cpu_seconds, say
from rondo.control.config import QueueConfig
from rondo.control.key import Rights
from rondo.control.keys import Keys
from rondo.control.queue.queue import Queue
from rondo.control.queue.work import New
from rondo.control.store.store import Store

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from support.ports import free_port
from support.postgres import installed, postgres

SHORT = {"model": "short", "prompt": "word " * 27, "max_tokens": 128}
LONG = {"model": "long", "prompt": "word " * 13_090, "max_tokens": 128}
RESULT = {
    "status": 200,
    "request_id": "r",
    "body": {"choices": [{"text": "word " * 80}]},
    "input_tokens": 40,
    "output_tokens": 80,
}
WORKERS, CALLERS = 4, 2
TOGETHER = {"short": 1000, "long": 50}
LEASED = {"short": 500, "long": 50}


Cpu = Callable[[], float]


@contextmanager
def gateways(number: int, home: Path, place: str) -> Iterator[tuple[list[str], Cpu]]:
    urls: list[str] = []
    processes: list[subprocess.Popen[bytes]] = []
    try:
        for _ in range(number):
            port = free_port()
            processes.append(
                subprocess.Popen(
                    [
                        *(sys.executable, "-m", "rondo.cli", "gateway", f"--port={port}"),
                        *("--gateway.access_log=false", "--log.level=error"),
                    ],
                    env=os.environ | {"RONDO_HOME": str(home), "RONDO_STORE_URL": place},
                    stdout=subprocess.DEVNULL,
                )
            )
            urls.append(f"http://127.0.0.1:{port}")
        asyncio.run(until_up(urls))
        yield urls, lambda: sum(cpu_seconds(process.pid) for process in processes)
    finally:
        for process in processes:
            process.terminate()
        for process in processes:
            process.wait(60)


async def until_up(urls: list[str]) -> None:
    async with aiohttp.ClientSession() as session:
        for url in urls:
            while True:
                try:
                    async with session.get(url + "/health") as response:
                        if response.status == 200:
                            break
                except aiohttp.ClientError:
                    await asyncio.sleep(0.1)


Post = Callable[[str, bytes], Awaitable[Any]]


@contextmanager
def timed(found: list[float], number: int) -> Iterator[None]:
    begin = time.perf_counter()
    yield
    found.append(number / (time.perf_counter() - begin))


async def posting(
    urls: list[str], work: Callable[[int, Post], Awaitable[None]], callers: int, key: str
) -> None:
    """Runs `work(number of the caller, post)` for each caller, over the gateways in turn."""
    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {key}"}
    async with aiohttp.ClientSession(headers=headers) as session:

        def to(url: str) -> Post:
            async def post(path: str, data: bytes) -> Any:
                async with session.post(url + path, data=data) as response:
                    body = await response.read()
                    assert response.status in (200, 201), body
                    return msgspec.json.decode(body)

            return post

        await asyncio.gather(*(work(each, to(urls[each % len(urls)])) for each in range(callers)))


def enqueue(urls: list[str], body: dict[str, Any], number: int, key: str) -> float:
    together = TOGETHER[body["model"]]
    data = msgspec.json.encode({"items": [{"path": "/v1/completions", "body": body}] * together})

    async def work(caller: int, post: Post) -> None:
        for _ in range(number // CALLERS // together):
            await post("/v1/queue/groups", data)

    found: list[float] = []
    with timed(found, number // CALLERS // together * together * CALLERS):
        asyncio.run(posting(urls, work, CALLERS, key))
    return found[0]


def work_off(urls: list[str], model: str, number: int, key: str) -> float:
    done = 0

    async def work(caller: int, post: Post) -> None:
        nonlocal done
        name = f"w{caller}"
        call = msgspec.json.encode({"worker": name, "models": [model], "limit": LEASED[model], "wait": 0})
        while done < number:
            items = (await post("/v1/queue/leases", call))["items"]
            results = [{"id": each["id"], "lease": each["lease"], "result": RESULT} for each in items]
            if not results:
                return
            await post("/v1/queue/finish", msgspec.json.encode({"worker": name, "results": results}))
            done += len(results)

    begin = time.perf_counter()
    asyncio.run(posting(urls, work, WORKERS, key))
    return done / (time.perf_counter() - begin)


async def introduce(caller: int, post: Post) -> None:
    """A gateway refuses models that neither its engines nor its workers have."""
    call = {"worker": f"models-{caller}", "models": ["short", "long", "shared"], "limit": 1, "wait": 0}
    await post("/v1/queue/leases", msgspec.json.encode(call))
    await post("/v1/queue/release", msgspec.json.encode({"worker": f"models-{caller}", "held": []}))


PER_CPU = ", a CPU second of the gateways"


def rates(urls: list[str], cpu: Cpu, number: int, key: str) -> dict[str, float]:
    """Of the clock, and of the gateways' CPU time, which other work on the machine hardly changes."""
    found = {}
    asyncio.run(posting(urls, introduce, len(urls), key))
    for body, size, each in ((SHORT, "200 B", number), (LONG, "64 kB", number // 20)):
        name, begin = f"{size}, enqueued {TOGETHER[body['model']]:,} together", cpu()
        found[name] = enqueue(urls, body, each, key)
        found[name + PER_CPU] = each / (cpu() - begin)
        name, begin = f"{size}, leased and finished by {WORKERS} workers", cpu()
        found[name] = work_off(urls, body["model"], each // 2, key)
        found[name + PER_CPU] = each // 2 / (cpu() - begin)
    return found


def shared(urls: list[str], store: Store, number: int) -> float:
    """Share of the small owner's requests among those leased while both owners wait: 0.5 is fair."""
    queue = Queue(store)
    queue.put([New("shared", "{}")] * number, "large").result()
    small = queue.put([New("shared", "{}")] * (number // 100), "small").result().name
    key = Keys(store).make("worker", Rights("worker")).result()[1]
    taken = mine = 0

    async def work(caller: int, post: Post) -> None:
        nonlocal taken, mine
        call = msgspec.json.encode({"worker": f"w{caller}", "models": ["shared"], "limit": 10, "wait": 0})
        while mine < number // 100:
            ids = [each["id"] for each in (await post("/v1/queue/leases", call))["items"]]
            taken += len(ids)
            mine += sum(id.startswith(small) for id in ids)

    asyncio.run(posting(urls, work, 2, key))
    return mine / taken


def measure(report: Report, kind: str, place: str, number: int, rows: int, home: Path) -> None:
    store = Store(place if "://" in place else Path(place))
    key = Keys(store).make("bench", Rights("admin")).result()[1]
    queue = Queue(store, QueueConfig(keep=0.0))
    with gateways(1 if kind == "SQLite" else 2, home, place) as (urls, cpu):
        say(f"{kind}, empty")
        empty = rates(urls, cpu, number, key)
        say(f"{kind}, {rows:,} rows")
        for _ in range(rows // 10_000):
            queue.put([New("short", '{"path": "/v1/completions", "body": {}}')] * 10_000, "other").result()
        full = rates(urls, cpu, number, key)
        report.ours[f"{kind}, share of an owner with 1% of the requests"] = shared(urls, store, 20_000)
    queue.clear().result()
    total = sum(queue.counts().result().values())
    found: list[float] = []
    with timed(found, total):
        queue.prune().result()
    report.ours[f"{kind}, pruned"] = found[0]
    store.close()
    for name, value in empty.items():
        report.ours[f"{kind}, {name}"] = value
        report.columns.setdefault(f"{rows:,} rows there", {})[f"{kind}, {name}"] = full[name]
        report.ratios[f"{kind}, {name}, {rows:,} rows / none"] = full[name] / value


def main() -> None:
    own = argparse.ArgumentParser(add_help=False)
    own.add_argument("--rows", type=int, default=1_000_000)
    given, rest = own.parse_known_args()
    options = arguments(__doc__ or "", rest)
    number, rows = (4000, 10_000) if options.quick else (40_000, given.rows)
    report = Report("the durable queue over HTTP, requests a second")
    with ExitStack() as opened:
        folder = Path(opened.enter_context(tempfile.TemporaryDirectory(dir=os.environ.get("TMPDIR"))))
        measure(report, "SQLite", str(folder / "rondo.db"), number, rows, folder)
        if installed():
            cluster = opened.enter_context(postgres(fsync="on", shared_buffers="256MB"))
            measure(report, "PostgreSQL, 2 gateways", cluster.database(), number, rows, folder)
    report.show(options.json)


if __name__ == "__main__":
    main()
