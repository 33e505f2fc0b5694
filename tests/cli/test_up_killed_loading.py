"""kill -9 of parts of `rondo up` while a model loads on demand; `test_up_killed.py` has the stages of a request."""

import os
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from support.home import own_home
from support.processes import alive
from support.served import write_model
from support.up import Up, running_up
from support.waiting import wait_until

LONGEST = 600.0


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = own_home(tmp_path_factory.mktemp("kills") / "home")
    for name in ("toy", "other"):
        write_model(home / "models" / name)
    return home


@pytest.fixture(scope="module")
def up(home: Path) -> Iterator[Up]:
    with running_up(home, "toy") as running:
        yield running


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(4) as workers:
        yield workers


def pid_of(up: Up, part: str) -> int:
    pid = up.parts()[part]["pid"]
    assert isinstance(pid, int)
    return pid


def complete(up: Up, model: str = "toy") -> httpx.Response:
    body = {"model": model, "prompt": "a", "max_tokens": 2}
    return httpx.post(up.url + "/v1/completions", json=body, timeout=LONGEST)


def answers(up: Up, model: str = "toy") -> bool:
    try:
        return complete(up, model).status_code == 200
    except httpx.TransportError:
        return False


class Stream:
    """A stream that is read by a thread. `text` is what came, `broken` whether its connection broke."""

    def __init__(self, up: Up) -> None:
        self.text, self.broken, self.begun = "", False, threading.Event()
        self._url = up.url + "/v1/completions"
        self.thread = threading.Thread(target=self._read, daemon=True)
        self.thread.start()

    def _read(self) -> None:
        body = {"model": "toy", "prompt": "a", "max_tokens": 240, "ignore_eos": True, "stream": True}
        try:
            with httpx.stream("POST", self._url, json=body, timeout=LONGEST) as response:
                for part in response.iter_text():
                    self.text += part
                    self.begun.set()
        except httpx.TransportError:
            self.broken = True
        self.begun.set()

    @property
    def whole(self) -> bool:
        return self.text.endswith("data: [DONE]\n\n")


def requests_at(up: Up) -> int:
    engines: list[dict[str, Any]] = httpx.get(up.url + "/v1/engines", timeout=60).json()["data"]
    return sum(engine["requests"] for engine in engines)


def waiting_at_a_stopped_engine(up: Up, pool: ThreadPoolExecutor) -> tuple[int, Future[httpx.Response]]:
    pid = pid_of(up, "engine-1")
    os.kill(pid, signal.SIGSTOP)
    asked = pool.submit(complete, up)
    wait_until(lambda: requests_at(up) >= 1 or asked.done())
    return pid, asked


def test_an_engine_on_demand_is_killed_while_it_loads(up: Up, pool: ThreadPoolExecutor) -> None:
    asked = pool.submit(complete, up, "other")
    wait_until(lambda: "model-other" in up.parts())
    os.kill(pid_of(up, "model-other"), signal.SIGKILL)
    answer = asked.result(LONGEST)
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "model_load_failed")
    wait_until(lambda: answers(up, "other"), 240)
    assert httpx.post(up.url + "/v1/models/unload", json={"model": "other"}).status_code == 200
    wait_until(lambda: "model-other" not in up.parts())


def test_the_gateway_is_killed_while_a_model_loads(up: Up, pool: ThreadPoolExecutor) -> None:
    asked = pool.submit(complete, up, "other")
    wait_until(lambda: "model-other" in up.parts())
    engine = pid_of(up, "model-other")
    os.kill(pid_of(up, "gateway"), signal.SIGKILL)
    assert isinstance(asked.exception(LONGEST), httpx.TransportError)
    wait_until(lambda: answers(up, "other"), 240)
    assert pid_of(up, "model-other") == engine


def test_the_supervisor_is_killed_at_each_stage_and_starts_again(
    home: Path, tmp_path: Path, pool: ThreadPoolExecutor
) -> None:
    again = own_home(tmp_path / "home")
    (again / "models").symlink_to(home / "models")
    with running_up(again, "toy") as killed:
        stream = Stream(killed)
        assert stream.begun.wait(LONGEST)
        _, waiting = waiting_at_a_stopped_engine(killed, pool)
        loading = pool.submit(complete, killed, "other")
        wait_until(lambda: "model-other" in killed.parts())
        pids = [part["pid"] for part in killed.parts().values() if isinstance(part["pid"], int)]
        killed.process.kill()
        killed.process.wait()
        assert isinstance(waiting.exception(LONGEST), httpx.TransportError)
        lost = loading.exception(LONGEST)  # the gateway may see the supervisor's end before its own
        assert isinstance(lost, httpx.TransportError) or (
            lost is None and loading.result().status_code == 503
        )
        stream.thread.join(LONGEST)
        assert stream.whole or stream.broken
    wait_until(lambda: not any(map(alive, pids)))
    with running_up(again, "toy") as second:
        assert answers(second)
        assert answers(second, "other")
