"""Processes that compute for graders."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from rondo.base.errors import InvalidRequest, NotFound, Unavailable
from rondo.base.telemetry.metrics import render
from rondo.graders import Sample, Score, guarded
from rondo.graders.execution.function import FunctionGrader
from rondo.graders.processes import pool as pool_module
from rondo.graders.processes.pool import GraderFailed, GraderPool
from support.processes import wait_until_gone
from support.waiting import wait_until

FUNCTIONS = """
import importlib, os, pathlib, signal, subprocess, sys, time
from rondo.base.errors import InvalidRequest

def add(a, b): return a + b
def pid(): return os.getpid()
def loud(): print("x" * 1000); print("y", file=sys.stderr); os.write(1, b"begun\\n"); return 1
def hang(): time.sleep(600)
def spin(): return 9 ** 9 ** 9
def nap(seconds): time.sleep(seconds); return os.getpid()
def crash(): os.kill(os.getpid(), signal.SIGSEGV)
def leave(): os._exit(3)
def exits(): sys.exit(0)
def fails(): raise KeyError("city")
def refuses(): raise InvalidRequest("no reference", param="reference")
def late(): raise TimeoutError("its own limit")
def greedy(): return len(bytearray(8 << 30))
def odd(): return {1, 2}
def nan(): return float("nan")
def count(text): return len(text)
def environ(): return dict(os.environ)
def shown(item, answer): return float(os.environ.get("SEARCH_KEY") == answer)

def torch_is_loaded(*after):
    for name in after: importlib.import_module(name)
    return "torch" in sys.modules

def tell(where, what):
    pathlib.Path(where + ".new").write_text(str(what))
    os.rename(where + ".new", where)

def slow(told, killed):
    before = int(pathlib.Path(told).read_text()) if os.path.exists(told) else None
    tell(told, os.getpid())
    if before is None or killed > 1: time.sleep(60)
    return os.getpid()

def starts(told):
    tell(told, subprocess.Popen(["sleep", "600"]).pid)
    time.sleep(600)

def spins(told):
    tell(told, os.getpid())
    return 9 ** 9 ** 9
"""


@pytest.fixture(scope="module")
def pool() -> Iterator[GraderPool]:
    pool = GraderPool(workers=2)
    yield pool
    pool.close()


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> str:
    path: Path = tmp_path_factory.mktemp("functions") / "functions.py"
    path.write_text(FUNCTIONS)
    return str(path)


def call(pool: GraderPool, function: str, *arguments: object, seconds: float = 20.0) -> object:
    return asyncio.run(pool.call(function, *arguments, seconds=seconds))


def test_a_function_is_found_by_its_name(pool: GraderPool, file: str) -> None:
    assert call(pool, f"{file}:add", 1, 2) == 3
    assert call(pool, "math:sqrt", 9.0) == 3.0
    assert call(pool, f"{file}:add", "\ud800ü\n", "{}") == "\ud800ü\n{}"


def test_what_it_prints_is_no_answer(pool: GraderPool, file: str) -> None:
    assert call(pool, f"{file}:loud") == 1


def test_ten_megabytes_go_through(pool: GraderPool, file: str) -> None:
    assert call(pool, f"{file}:count", "ü" * 10_000_000) == 10_000_000


def test_functions_get_no_keys_but_those_that_they_list(file: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OPENAI_API_KEY", "HF_TOKEN", "SEARCH_KEY"):
        monkeypatch.setenv(name, "the trainer's")
    pool = GraderPool(workers=1)
    monkeypatch.setattr(pool_module, "shared", lambda: pool)
    try:
        found = call(pool, f"{file}:environ")
        assert isinstance(found, dict)
        assert found["PATH"] == os.environ["PATH"]
        assert "the trainer's" not in found.values()
        sample = Sample("", "the trainer's")
        shown = f"{file}:shown"
        assert (
            asyncio.run(FunctionGrader(shown, pass_env=("SEARCH_KEY", "NOT_SET")).score(sample)).total == 1.0
        )
        assert asyncio.run(FunctionGrader(shown).score(sample)).total == 0.0, "it is gone after the call"
    finally:
        pool.close()


def test_processes_stay(pool: GraderPool, file: str) -> None:
    assert len({call(pool, f"{file}:pid") for _ in range(10)}) <= 2


@pytest.mark.parametrize("function", ["hang", "spin"])
def test_what_hangs_is_killed_and_replaced(pool: GraderPool, file: str, function: str) -> None:
    with pytest.raises(TimeoutError, match=f"{function} took more than 0.3 s"):
        call(pool, f"{file}:{function}", seconds=0.3)
    assert call(pool, f"{file}:add", 1, 2) == 3
    assert b'rondo:grader_workers_lost_total{reason="late"}' in render()


@pytest.mark.parametrize(
    ("function", "ending"), [("crash", "signal 11"), ("leave", "exit code 3"), ("exits", "exit code 0")]
)
def test_what_dies_is_replaced(pool: GraderPool, file: str, function: str, ending: str) -> None:
    with pytest.raises(Unavailable, match=f"{function} .*{ending}"):
        call(pool, f"{file}:{function}")
    assert call(pool, f"{file}:add", 1, 2) == 3


def test_errors_come_back_as_what_they_are(pool: GraderPool, file: str) -> None:
    with pytest.raises(InvalidRequest, match="no reference") as refused:
        call(pool, f"{file}:refuses")
    assert refused.value.param == "reference"
    with pytest.raises(GraderFailed, match=r"KeyError: 'city'"):
        call(pool, f"{file}:fails")
    with pytest.raises(TimeoutError, match="its own limit"):
        call(pool, f"{file}:late")
    with pytest.raises(GraderFailed, match="MemoryError"):
        call(pool, f"{file}:greedy")
    with pytest.raises(GraderFailed, match="TypeError"):
        call(pool, f"{file}:odd")
    with pytest.raises(NotFound, match="Did you mean add"):
        call(pool, f"{file}:addd")
    with pytest.raises(NotFound, match="nowhere"):
        call(pool, "nowhere.at_all:function")
    assert call(pool, f"{file}:add", 1, 2) == 3


def test_an_idle_process_that_was_killed_is_replaced_before_it_is_asked(file: str) -> None:
    pool = GraderPool(workers=1)
    try:
        first = int(str(call(pool, f"{file}:pid")))
        os.kill(first, signal.SIGKILL)
        wait_until_gone([first])
        assert call(pool, f"{file}:pid") != first
    finally:
        pool.close()


@pytest.mark.parametrize("times", [1, 2])
def test_a_process_killed_while_it_computes_is_asked_once_more(file: str, tmp_path: Path, times: int) -> None:
    """Whoever killed it, the question is not to blame: unless that happens again."""
    pool, told = GraderPool(workers=1), tmp_path / "told"

    def kill() -> list[int]:
        killed: list[int] = []
        for _ in range(times):
            wait_until(lambda: told.exists() and int(told.read_text()) not in killed)
            killed.append(int(told.read_text()))
            os.kill(killed[-1], signal.SIGKILL)
        return killed

    try:
        with ThreadPoolExecutor() as threads:
            killing = threads.submit(kill)
            asked = threads.submit(call, pool, f"{file}:slow", str(told), times)
            killed = killing.result()
            if times == 1:
                assert int(str(asked.result())) not in killed
            else:
                with pytest.raises(Unavailable, match="slow was killed by signal 9"):
                    asked.result()
        wait_until_gone(killed)
        assert call(pool, f"{file}:add", 1, 2) == 3
        assert len(pool._all) == 1
    finally:
        pool.close()


def test_what_a_late_function_has_started_ends_with_it(file: str, tmp_path: Path) -> None:
    pool, told = GraderPool(workers=1), tmp_path / "told"
    try:
        with pytest.raises(TimeoutError):
            call(pool, f"{file}:starts", str(told), seconds=1.0)
        wait_until_gone([int(told.read_text())])
    finally:
        pool.close()


OWNER = """
import asyncio, sys
from rondo.graders.processes.pool import call
asyncio.run(call(sys.argv[1], *sys.argv[2:], seconds=1.0))
"""


def test_processes_end_with_their_owner_however_it_ends(file: str, tmp_path: Path) -> None:
    """Killed while one computes without end: its own clock ends that."""
    told = tmp_path / "told"
    owner = subprocess.Popen(
        [sys.executable, "-c", OWNER, f"{file}:spins", str(told)], stderr=subprocess.DEVNULL
    )
    wait_until(told.exists)
    owner.kill()
    owner.wait()
    wait_until_gone([int(told.read_text())])


def test_the_queue_is_not_the_grader_s_time(file: str) -> None:
    """Sixteen naps one after another take longer than the limit of each; only the one that is late itself is."""
    pool = GraderPool(workers=1)

    class Naps:
        async def score(self, sample: Sample) -> Score:
            await pool.call(f"{file}:nap", float(sample.completion), seconds=20.0)
            return Score("ok", 1.0)

    async def all_of_them() -> list[Score]:
        grader = guarded(Naps(), 1.0)
        naps = ["0.1"] * 16 + ["1.8"]
        return list(await asyncio.gather(*(grader.score(Sample("", nap)) for nap in naps)))

    try:
        begin = time.monotonic()
        outcomes = [score.outcome for score in asyncio.run(all_of_them())]
        assert time.monotonic() - begin > 1.6
        assert outcomes == ["ok"] * 16 + ["timeout"]
    finally:
        pool.close()


def test_who_does_not_wait_leaves_no_work_behind(file: str) -> None:
    pool = GraderPool(workers=1)

    async def hurry() -> object:
        naps = [asyncio.create_task(pool.call(f"{file}:nap", 0.2)) for _ in range(50)]
        await asyncio.sleep(0.1)
        for nap in naps:
            nap.cancel()
        await asyncio.gather(*naps, return_exceptions=True)
        return await pool.call(f"{file}:add", 1, 2)

    try:
        begin = time.monotonic()
        assert asyncio.run(hurry()) == 3
        assert time.monotonic() - begin < 9.0, "fifty naps were taken"
    finally:
        pool.close()


def test_a_closed_pool_says_so(file: str) -> None:
    pool = GraderPool(workers=1)
    call(pool, f"{file}:add", 1, 2)
    pool.close()
    with pytest.raises((Unavailable, RuntimeError), match=r"closed|shutdown"):
        call(pool, f"{file}:add", 1, 2)


def test_a_process_starts_without_torch(pool: GraderPool, file: str) -> None:
    loaded = call(pool, "rondo.base.entry:load_entry", "sys:version", "x")
    assert isinstance(loaded, str)
    assert call(pool, f"{file}:torch_is_loaded") is False


def test_nor_does_a_user_s_task_load_torch(pool: GraderPool, file: str) -> None:
    """Its file is imported by each process that grades for it."""
    assert call(pool, f"{file}:torch_is_loaded", "rondo.rl.tasks.custom") is False
    assert call(pool, f"{file}:torch_is_loaded", "rondo.rl.tasks.games") is False
