"""A store that is locked, full, damaged, deleted or hung: requests whose key cannot be checked are refused, none passes
without a key, and all are served again afterwards."""

import os
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

import httpx
import pytest

from gateway.stub import RunningGateway, Stub, gateway_of, served
from rondo.cli.main import main
from rondo.control.key import Rights
from rondo.control.keys import LOCAL
from rondo.control.store.store import Store
from rondo.control.usage import UsageLog
from support.disk import resize, small_disk
from support.home import own_home
from support.stores import new_store
from support.waiting import scaled, wait_until

BODY = {"model": "m", "prompt": "a"}


@pytest.fixture(scope="module")
def stub() -> Iterator[Stub]:
    with served(Stub()) as running:
        yield running


@contextmanager
def guarded(stub: Stub, folder: Path) -> Iterator[tuple[RunningGateway, dict[str, str]]]:
    with gateway_of([stub.url], folder, keys="required") as gateway:
        text = gateway.gateway.keys.make("admin", Rights("admin")).result()[1]
        yield gateway, {"authorization": f"Bearer {text}"}


def post(gateway: RunningGateway, headers: dict[str, str] | None = None) -> tuple[int, str | None]:
    answer = httpx.post(gateway.url + "/v1/completions", json=BODY, headers=headers, timeout=60)
    return answer.status_code, answer.json().get("error", {}).get("message")


def create(gateway: RunningGateway, headers: dict[str, str]) -> httpx.Response:
    return httpx.post(gateway.url + "/v1/keys", json={"name": "x"}, headers=headers, timeout=60)


def served_requests(gateway: RunningGateway, headers: dict[str, str]) -> int:
    rows = httpx.get(gateway.url + "/v1/usage", headers=headers, timeout=60).json()["data"]
    return sum(row["requests"] for row in rows)


def test_while_another_program_locks_the_store_requests_pass_and_writes_wait(
    stub: Stub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rondo.control.store.sqlite.BUSY_SECONDS", 0.3)
    with guarded(stub, tmp_path) as (gateway, admin):
        other = sqlite3.connect(tmp_path / "rondo.db", isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        assert [post(gateway, admin)[0] for _ in range(3)] == [200] * 3
        refused = create(gateway, admin)
        assert refused.status_code == 503
        assert "locked by another program" in refused.json()["error"]["message"]
        assert post(gateway)[0] == 401
        other.execute("ROLLBACK")
        other.close()
        assert create(gateway, admin).status_code == 201
        wait_until(lambda: served_requests(gateway, admin) == 3)  # no usage was lost


def test_a_gateway_that_ends_writes_the_usage_of_the_pause(
    stub: Stub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rondo.control.usage.PAUSE_SECONDS", 3600)
    with gateway_of([stub.url], tmp_path) as gateway:
        assert [post(gateway)[0] for _ in range(3)] == [200] * 3
    store = Store(tmp_path / "rondo.db")
    assert [row.requests for row in UsageLog(store).usage(LOCAL.id).result()] == [3]
    store.close()


def test_with_a_full_disk_requests_pass_and_writes_name_the_remedy(stub: Stub, tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    with small_disk(disk, "1m"), guarded(stub, disk) as (gateway, admin):
        (disk / "filler").write_bytes(b"")
        with (disk / "filler").open("ab", buffering=0) as filler:
            try:
                while filler.write(b"x" * 4096):
                    pass
            except OSError:
                pass
        wait_until(lambda: create(gateway, admin).status_code == 507)
        assert "make room on its disk" in create(gateway, admin).json()["error"]["message"]
        assert [post(gateway, admin)[0] for _ in range(3)] == [200] * 3
        resize(disk, "8m")
        assert create(gateway, admin).status_code == 201
        wait_until(lambda: served_requests(gateway, admin) == 3)


def test_a_store_that_is_deleted_is_named_until_it_is_back(stub: Stub, tmp_path: Path) -> None:
    with guarded(stub, tmp_path) as (gateway, admin):
        path, aside = tmp_path / "rondo.db", tmp_path / "aside"
        path.rename(aside)
        status, message = post(gateway, admin)
        assert status == 507
        assert message is not None
        assert "was removed or replaced" in message
        assert post(gateway)[0] in (401, 507)
        health = httpx.get(gateway.url + "/v1/health")
        assert (health.status_code, health.json()["components"]["store"]["status"]) == (503, "error")
        assert httpx.get(gateway.url + "/ready").status_code == 503
        assert httpx.get(gateway.url + "/health").status_code == 200
        path.touch()  # another file in its place is no store
        assert post(gateway, admin)[0] == 507
        aside.replace(path)
        assert post(gateway, admin)[0] == 200
        assert create(gateway, admin).status_code == 201


def test_a_store_that_is_damaged_while_it_is_used_lets_nobody_in(stub: Stub, tmp_path: Path) -> None:
    with guarded(stub, tmp_path) as (gateway, admin):
        assert post(gateway, admin)[0] == 200
        wait_until(lambda: served_requests(gateway, admin) == 1)
        gateway.store.write(lambda db: None).result()
        for file in (tmp_path / "rondo.db", tmp_path / "rondo.db-wal"):
            file.write_bytes(os.urandom(file.stat().st_size))
        gateway.store.database._readers.dispose()  # type: ignore[attr-defined] # their caches are sound
        status, message = post(gateway, admin)
        assert (status, "is damaged" in str(message)) in ((507, True), (200, False))
        assert post(gateway)[0] == 401
        wrong = {"authorization": "Bearer rk-000000000000-" + "x" * 43}
        assert post(gateway, wrong)[0] in (401, 507)


def test_a_store_that_hangs_is_a_503_and_not_a_wait_without_end(
    stub: Stub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rondo.gateway.auth.STORE_SECONDS", 0.3)
    monkeypatch.setattr("rondo.gateway.routes.health.STORE_SECONDS", 0.3)
    with guarded(stub, tmp_path) as (gateway, admin):
        release = threading.Event()
        held = [gateway.store.read(lambda db: release.wait(scaled(60))) for _ in range(4)]
        try:
            answer = httpx.post(gateway.url + "/v1/completions", json=BODY, headers=admin, timeout=60)
            assert (answer.status_code, answer.json()["error"]["code"]) == (503, "store_unavailable")
            assert httpx.get(gateway.url + "/v1/keys", headers=admin).status_code == 503
            assert httpx.get(gateway.url + "/ready").status_code == 503
            assert post(gateway)[0] == 401
        finally:
            release.set()
        assert all(each.result(60) for each in held)
        assert post(gateway, admin)[0] == 200


def test_a_checked_key_is_valid_for_its_seconds_without_the_store(stub: Stub, tmp_path: Path) -> None:
    with gateway_of([stub.url], tmp_path, keys="required", key_seconds=3600) as gateway:
        text = gateway.gateway.keys.make("user").result()[1]
        user = {"authorization": f"Bearer {text}"}
        assert post(gateway, user)[0] == 200
        (tmp_path / "rondo.db").rename(tmp_path / "aside")
        assert post(gateway, user)[0] == 200
        gateway.loop.call_soon_threadsafe(gateway.gateway.auth.forget)
        wait_until(lambda: post(gateway, user)[0] == 507)
        (tmp_path / "aside").rename(tmp_path / "rondo.db")


def test_usage_that_a_failure_left_is_written_at_the_end(stub: Stub, tmp_path: Path) -> None:
    path, aside = tmp_path / "rondo.db", tmp_path / "aside"
    with gateway_of([stub.url], tmp_path, keys="required", key_seconds=3600) as gateway:
        key, text = gateway.gateway.keys.make("user").result()
        user = {"authorization": f"Bearer {text}"}
        assert post(gateway, user)[0] == 200
        wait_until(lambda: [row.requests for row in gateway.gateway.usage.usage(key.id).result()] == [1])
        path.rename(aside)
        assert [post(gateway, user)[0] for _ in range(5)] == [200] * 5
        wait_until(lambda: not gateway.gateway.usage._writing)
        aside.rename(path)
    with gateway_of([stub.url], tmp_path, keys="required") as gateway:
        assert [row.requests for row in gateway.gateway.usage.usage(key.id).result()] == [6]


@pytest.mark.parametrize("kind", ["damaged", "locked", "folder", "newer"])
def test_a_gateway_that_cannot_open_its_store_ends_with_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], kind: str
) -> None:
    home = own_home(tmp_path / "home")
    path = home / "rondo.db"
    monkeypatch.setenv("RONDO_HOME", str(home))
    monkeypatch.setattr("rondo.control.store.sqlite.BUSY_SECONDS", 0.1)
    with ExitStack() as stack:
        if kind == "damaged":
            path.write_bytes(b"no database " * 1000)
        elif kind == "folder":
            path.mkdir()
        else:
            new_store(path).close()
            other = stack.enter_context(closing(sqlite3.connect(path, isolation_level=None)))
            if kind == "newer":
                other.execute("UPDATE alembic_version SET version_num = '9999'")
            else:
                other.execute("BEGIN IMMEDIATE")
        assert main(["gateway", "--port=0"]) in ((1,) if kind == "locked" else (5, 6))
    said = capsys.readouterr().err.strip().splitlines()
    assert len(said) == 1
    assert str(path) in said[0]
    assert kind != "locked" or "locked by another program" in said[0]
