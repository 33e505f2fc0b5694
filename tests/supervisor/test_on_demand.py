"""Engines on demand: one start for concurrent requests, the memory budget, failures, idle engines, adapters."""

import os
import signal
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from rondo.base.errors import InvalidRequest, NotFound, RondoError, Unavailable
from rondo.supervisor.calls import is_ready
from rondo.supervisor.catalog import Loadable
from support.on_demand import FakeFleet
from support.waiting import wait_until

Make = Callable[..., FakeFleet]


@pytest.fixture
def make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Make]:
    monkeypatch.setenv("RONDO_HOME", str(tmp_path))
    made: list[FakeFleet] = []

    def fleet(sizes: dict[str, int], budget: int = 100, **settings: Any) -> FakeFleet:
        made.append(FakeFleet(tmp_path / "engines", sizes, budget, **settings))
        return made[-1]

    yield fleet
    for each in made:
        each.on_demand.stop()
        for part, _ in each.pinned:
            part.end(30)


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(8) as workers:
        yield workers


def states(fleet: FakeFleet) -> dict[str, str]:
    return {row["id"]: row["state"] for row in fleet.on_demand.state()["models"]}


def test_concurrent_first_requests_start_one_engine(make: Make, pool: ThreadPoolExecutor) -> None:
    fleet = make({"a": 10})
    (fleet.folder / "a" / "slow").touch()
    asked = [pool.submit(fleet.on_demand.ensure, name) for name in ("a", "a", "a-hash")]
    wait_until(lambda: fleet.starts("a"))
    assert states(fleet) == {"a": "loading"}
    (fleet.folder / "a" / "slow").unlink()
    assert len({tuple(each.result(120)) for each in asked}) == 1
    assert fleet.starts("a") == 1
    assert states(fleet) == {"a": "ready"}


def test_a_failed_load_is_reported_to_each_request_and_retried_after_a_pause(
    make: Make, pool: ThreadPoolExecutor
) -> None:
    fleet = make({"a": 10}, restart_seconds=30.0, longest_restart_seconds=30.0)
    (fleet.folder / "a" / "slow").touch()
    (fleet.folder / "a" / "fail").touch()
    asked = [pool.submit(fleet.on_demand.ensure, "a") for _ in range(3)]
    wait_until(lambda: fleet.starts("a"))
    (fleet.folder / "a" / "slow").unlink()
    for each in asked:
        error = each.exception(120)
        assert isinstance(error, Unavailable)
        assert "ended with exit code 3. error: the weights are broken. See `rondo logs model-a`" in str(error)
    with pytest.raises(Unavailable, match="weights are broken"):
        fleet.on_demand.ensure("a")
    assert fleet.starts("a") == 1
    row = fleet.on_demand.state()["models"][0]
    assert row["state"] == "failed"
    assert "weights are broken" in row["error"]


def test_a_model_loads_after_its_fault_is_repaired(make: Make) -> None:
    fleet = make({"a": 10}, restart_seconds=0.01, longest_restart_seconds=0.02)
    (fleet.folder / "a" / "fail").touch()
    with pytest.raises(Unavailable):
        fleet.on_demand.ensure("a")
    (fleet.folder / "a" / "fail").unlink()
    wait_until(lambda: _loads(fleet, "a"))
    assert fleet.starts("a") == 2


def _loads(fleet: FakeFleet, name: str) -> bool:
    try:
        return bool(fleet.on_demand.ensure(name))
    except RondoError:
        return False


def test_the_least_recently_used_engine_makes_room(make: Make) -> None:
    fleet = make({"a": 40, "b": 40, "c": 40})
    for name in ("a", "b"):
        fleet.on_demand.ensure(name)
    _age(fleet, a=50.0, b=90.0)
    fleet.on_demand.ensure("c")
    assert states(fleet) == {"a": "ready", "b": "unloaded", "c": "ready"}
    assert fleet.on_demand.used == 80 << 20


def _age(fleet: FakeFleet, **idle: float) -> None:
    """Sets the idle times once the engines have reported."""
    for name in idle:
        wait_until(lambda name=name: not fleet.slot(name).busy)
    for name, seconds in idle.items():
        slot = fleet.slot(name)
        slot.ready_at -= 2 * seconds
        slot.idle = seconds


def test_a_busy_engine_is_not_replaced(make: Make, pool: ThreadPoolExecutor) -> None:
    fleet = make({"a": 60, "b": 60}, load_seconds=120.0)
    fleet.on_demand.ensure("a")
    (fleet.folder / "a" / "busy").touch()
    wait_until(lambda: fleet.slot("a").busy)
    waiting: Future[list[str]] = pool.submit(fleet.on_demand.ensure, "b")
    assert fleet.starts("b") == 0
    (fleet.folder / "a" / "busy").unlink()
    _age(fleet, a=9.0)
    assert waiting.result(120)
    assert states(fleet) == {"a": "unloaded", "b": "ready"}


def test_a_wait_for_memory_ends_with_figures(make: Make) -> None:
    fleet = make({"a": 60, "b": 60}, load_seconds=0.5)
    (fleet.folder / "a" / "busy").touch()
    wait_until(lambda: _loads(fleet, "a"))
    with pytest.raises(Unavailable, match=r"needs about 60\.0 MB: the budget is 100\.0 MB.*a 60\.0 MB"):
        fleet.on_demand.ensure("b")


def test_a_model_above_the_budget_is_refused_with_figures(make: Make) -> None:
    fleet = make({"a": 70, "big": 101}, budget=100)
    with pytest.raises(InvalidRequest, match=r"needs about 101\.0 MB .*100\.0 MB of the budget") as refused:
        fleet.on_demand.ensure("big")
    assert refused.value.code == "model_too_large"
    assert fleet.starts("big") == 0


def test_an_idle_engine_ends_and_starts_again(make: Make) -> None:
    fleet = make({"a": 10}, idle_seconds=1.0)
    fleet.on_demand.ensure("a")
    wait_until(lambda: states(fleet) == {"a": "unloaded"})
    fleet.on_demand.ensure("a")
    assert fleet.starts("a") == 2


def test_a_killed_engine_starts_with_the_next_request(make: Make) -> None:
    fleet = make({"a": 10})
    fleet.on_demand.ensure("a")
    pid = fleet.slot("a").part.pid
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: states(fleet) == {"a": "unloaded"})
    fleet.on_demand.ensure("a")
    assert fleet.slot("a").part.pid != pid
    assert fleet.starts("a") == 2


def test_an_engine_that_has_just_died_is_not_given_out(make: Make) -> None:
    fleet = make({"a": 10})
    fleet.on_demand.ensure("a")
    for _ in range(3):
        os.kill(fleet.slot("a").part.pid, signal.SIGKILL)
        (url,) = fleet.on_demand.ensure("a")
        assert is_ready(url)


def test_an_engine_that_sleeps_is_given_out_at_once(make: Make) -> None:
    fleet = make({"a": 10})
    urls = fleet.on_demand.ensure("a")
    (fleet.folder / "a" / "asleep").touch()
    begin = time.monotonic()
    assert fleet.on_demand.ensure("a") == urls
    assert time.monotonic() - begin < fleet.on_demand.config.load_seconds / 2
    assert fleet.starts("a") == 1


def test_an_engine_killed_while_it_loads_fails_the_waiting_requests(
    make: Make, pool: ThreadPoolExecutor
) -> None:
    fleet = make({"a": 10})
    (fleet.folder / "a" / "slow").touch()
    asked = pool.submit(fleet.on_demand.ensure, "a")
    wait_until(lambda: fleet.starts("a"))
    os.kill(fleet.slot("a").part.pid, signal.SIGKILL)
    error = asked.exception(120)
    assert isinstance(error, Unavailable)
    assert "was killed by signal 9" in str(error)


def test_a_load_that_takes_too_long_is_a_503_and_goes_on(make: Make) -> None:
    fleet = make({"a": 10}, load_seconds=0.3)
    (fleet.folder / "a" / "slow").touch()
    with pytest.raises(Unavailable, match="is loading") as refused:
        fleet.on_demand.ensure("a")
    assert refused.value.code == "model_loading"
    (fleet.folder / "a" / "slow").unlink()
    wait_until(lambda: states(fleet) == {"a": "ready"})
    assert fleet.starts("a") == 1


def test_unload_ends_the_engine(make: Make) -> None:
    fleet = make({"a": 10})
    fleet.on_demand.ensure("a")
    fleet.on_demand.unload("a")
    wait_until(lambda: states(fleet) == {"a": "unloaded"})
    assert not fleet.on_demand._failures


def test_an_unknown_model_is_not_found(make: Make) -> None:
    with pytest.raises(NotFound, match="does not exist"):
        make({"a": 10}).on_demand.ensure("b")


def test_an_adapter_is_loaded_into_the_engine_of_its_base(make: Make, pool: ThreadPoolExecutor) -> None:
    fleet = make({"base": 10, "merged": 10})
    fleet.extra = [Loadable("lora", "merged", adapter="/jobs/lora/adapter", base="base")]
    fleet.on_demand.ensure("base")
    asked = [pool.submit(fleet.on_demand.ensure, "lora") for _ in range(3)]
    assert {each.result(120)[0] for each in asked} == {fleet.slot("base").part.url}
    assert fleet.starts("merged") == 0
    fleet.on_demand.unload("lora")


def test_an_adapter_without_a_loaded_base_uses_its_merged_weights(make: Make) -> None:
    fleet = make({"base": 10, "merged": 10})
    fleet.extra = [Loadable("lora", "merged", adapter="/jobs/lora/adapter", base="base")]
    fleet.on_demand.ensure("lora")
    assert (fleet.starts("base"), fleet.starts("merged")) == (0, 1)


def test_an_adapter_without_merged_weights_loads_its_base_first(make: Make) -> None:
    fleet = make({"base": 10})
    fleet.extra = [
        Loadable("lora", "", adapter="/jobs/lora/adapter", base="base"),
        Loadable("lost", "", adapter="/jobs/lost/adapter", base="elsewhere"),
    ]
    assert fleet.on_demand.ensure("lora") == [fleet.slot("base").part.url]
    with pytest.raises(NotFound, match="base elsewhere of the adapter 'lost'"):
        fleet.on_demand.ensure("lost")


def test_a_refused_adapter_is_reported(make: Make) -> None:
    fleet = make({"base": 10})
    fleet.extra = [Loadable("lora", "", adapter="/jobs/lora/adapter", base="base")]
    (fleet.folder / "base" / "no-adapters").touch()
    with pytest.raises(InvalidRequest, match="rank 128 exceeds 64"):
        fleet.on_demand.ensure("lora")


def test_a_refused_adapter_with_merged_weights_has_an_engine_of_its_own(make: Make) -> None:
    fleet = make({"base": 10, "merged": 10})
    fleet.extra = [Loadable("lora", "merged", adapter="/jobs/lora/adapter", base="base")]
    (fleet.folder / "base" / "no-adapters").touch()
    fleet.on_demand.ensure("base")
    assert fleet.on_demand.ensure("lora") == [fleet.slot("lora").part.url]


def test_a_pinned_engine_that_is_starting_is_not_started_again(make: Make, pool: ThreadPoolExecutor) -> None:
    fleet = make({"a": 10})
    (fleet.folder / "a" / "slow").touch()
    part = fleet.pin("a")
    fleet.on_demand._pinned = fleet.pinned
    asked = pool.submit(fleet.on_demand.ensure, "a-hash")
    wait_until(lambda: fleet.starts("a"))
    assert not asked.done()
    (fleet.folder / "a" / "slow").unlink()
    assert asked.result(120) == [part.url]
    assert fleet.starts("a") == 1


def test_pinned_engines_count_and_serve_adapters(make: Make) -> None:
    fleet = make({"base": 70, "other": 40})
    part = fleet.pin("base")
    fleet.on_demand._pinned_bytes = 70 << 20
    fleet.on_demand._pinned = fleet.pinned
    fleet.extra = [Loadable("lora", "other", adapter="/jobs/lora/adapter", base="base")]
    with pytest.raises(InvalidRequest, match=r"30\.0 MB of the budget"):
        fleet.on_demand.ensure("other")
    assert fleet.on_demand.ensure("lora") == [part.url]
    assert "base" not in states(fleet)
