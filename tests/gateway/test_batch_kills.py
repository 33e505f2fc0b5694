"""A gateway that is killed again and again while it works on batches: no line is lost, and none is in a file twice."""

import os
import random
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import openai
import pytest

from gateway.queue_worker import echo, worker
from gateway.test_batches import CHAT, jsonl, line, results
from rondo.control.store.check import problems
from rondo.control.store.store import Store
from support import forked_gateway as forked
from support.nursery import Nursery
from support.ports import free_port
from support.waiting import scaled, wait_until

LINES, KILLS = 1500, 6


@pytest.fixture(scope="module")
def nursery() -> Iterator[Nursery]:
    with Nursery([forked.MODULE]) as started:
        yield started


@contextmanager
def running(nursery: Nursery, home: Path, port: int) -> Iterator[None]:
    flags = [f"--port={port}", "--gateway.batches.poll_seconds=0.02", "--gateway.batches.duty_seconds=0.3"]
    command = (str(home / "log"), "gateway", *flags)
    pid = nursery.start(f"{forked.MODULE}:rondo", *command, environment={"RONDO_HOME": str(home)})
    try:
        yield
    finally:
        os.kill(pid, signal.SIGKILL)
        nursery.wait(pid)


def answered(item: dict[str, Any]) -> tuple[int, dict[str, Any]]:
    number = int(item["body"]["messages"][0]["content"][1:])
    return echo(item) if number % 10 else (400, {"error": {"message": "no"}})


def test_a_gateway_killed_at_random_loses_and_repeats_nothing(nursery: Nursery, tmp_path: Path) -> None:
    port = free_port()
    ids: list[str] = []
    client = openai.OpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key="none", max_retries=0)
    store = Store(tmp_path / "rondo.db")
    with client, worker(store, ["m"], answered, at_a_time=100) as done:
        for number in range(KILLS):
            with running(nursery, tmp_path, port):
                wait_until(lambda: _listens(client))
                if number in (0, 3):
                    file = client.files.create(
                        file=jsonl([line(each) for each in range(LINES)]), purpose="batch"
                    )
                    ids.append(
                        client.batches.create(
                            input_file_id=file.id, endpoint=CHAT, completion_window="24h"
                        ).id
                    )
                time.sleep(random.uniform(0, scaled(0.2)))
        with running(nursery, tmp_path, port):
            wait_until(lambda: _listens(client))
            for id in ids:
                wait_until(lambda id=id: client.batches.retrieve(id).status == "completed", 120)  # type: ignore[misc]
                batch: Any = client.batches.retrieve(id)
                output, errors = (
                    results(client, file) for file in (batch.output_file_id, batch.error_file_id)
                )
                numbers = sorted(int(each["custom_id"][5:]) for each in [*output, *errors])
                assert numbers == list(range(LINES))
                assert batch.request_counts.model_dump() == {
                    "total": LINES,
                    "completed": len(output),
                    "failed": len(errors),
                }
                assert all(
                    each["response"]["body"]["echo"] == line(int(each["custom_id"][5:]))["body"]
                    for each in output
                )
        assert len(done) == len(set(done)) == 2 * LINES, "a request was answered twice"
    assert store.read(problems).result() == []
    store.close()


def _listens(client: openai.OpenAI) -> bool:
    try:
        client.batches.list()
    except openai.APIConnectionError:
        return False
    return True
