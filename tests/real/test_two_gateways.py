"""Two `rondo gateway` processes on one PostgreSQL database: keys and quotas in common, kill -9 of one, a restart of the
database, and duties that the other takes over."""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import httpx
import openai
import pytest

from gateway.stub import USAGE, Stub, served
from rondo.control.config import QueueConfig
from rondo.control.queue.leases import Leases
from rondo.control.queue.maintain import Maintenance
from rondo.control.queue.queue import Queue
from rondo.control.queue.work import Finished, New
from rondo.control.store.store import Store
from support.home import own_home
from support.ports import free_port
from support.postgres import Cluster, postgres
from support.served import SOURCES
from support.waiting import run, scaled, wait_until

pytestmark = [pytest.mark.real, pytest.mark.timeout(900)]
TOKENS = USAGE["total_tokens"]


class GatewayProcess:
    def __init__(self, folder: Path, engine: str, store: str) -> None:
        self.home = own_home(folder)
        port = free_port()
        self.url = f"http://127.0.0.1:{port}"
        self.log = folder / "log"
        flags = (f"--port={port}", "--keys=required", "--gateway.poll_seconds=0.2")
        self._command = [sys.executable, "-m", "rondo.cli", "gateway", engine, *flags]
        self._env = {
            **os.environ,
            "PYTHONPATH": str(SOURCES),
            "RONDO_HOME": str(self.home),
            "RONDO_STORE_URL": store,
        }
        self.start()

    def start(self) -> None:
        with self.log.open("ab") as out:
            self.process = subprocess.Popen(self._command, env=self._env, stdout=out, stderr=out)

    def wait(self) -> None:
        wait_until(lambda: self.get("/ready") == 200, 120)

    def get(self, path: str, key: str = "") -> int:
        headers = {"authorization": f"Bearer {key}"} if key else {}  # no header value ends with a space
        try:
            return httpx.get(self.url + path, headers=headers, timeout=60).status_code
        except httpx.TransportError:
            return 0

    def post(self, key: str) -> httpx.Response:
        headers = {"authorization": f"Bearer {key}"} if key else {}
        return httpx.post(self.url + "/v1/completions", json={"model": "m"}, headers=headers, timeout=60)

    def admin(self) -> str:
        return (self.home / "admin-key").read_text().strip()

    def end(self, how: signal.Signals = signal.SIGTERM) -> None:
        self.process.send_signal(how)
        self.process.wait(scaled(60))


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with postgres() as started:
        yield started


@pytest.fixture
def pair(cluster: Cluster, tmp_path: Path) -> Iterator[tuple[GatewayProcess, GatewayProcess, str]]:
    """Two gateways, and the admin's key, which one of them made."""
    url = cluster.database()
    with served(Stub()) as stub, ExitStack() as stack:
        both = [GatewayProcess(tmp_path / name, stub.url, url) for name in ("a", "b")]
        for each in both:
            stack.callback(each.end)
        for each in both:
            each.wait()
        (admin,) = [each.admin() for each in both if (each.home / "admin-key").exists()]
        yield both[0], both[1], admin


def test_keys_and_the_daily_quota_are_shared(pair) -> None:
    first, second, admin = pair
    headers = {"authorization": f"Bearer {admin}"}
    body = {"name": "ann", "tokens_per_day": 4 * TOKENS}
    made = httpx.post(first.url + "/v1/keys", json=body, headers=headers, timeout=60).json()
    seen: list[int] = []
    for number in range(12):
        gateway = (first, second)[number % 2]
        seen.append(gateway.post(made["key"]).status_code)
        # the other gateway reads what is written: wait for it
        wanted = seen.count(200)
        wait_until(lambda wanted=wanted: _requests(second.url, admin, made["id"]) == wanted)
    assert seen == [200] * 4 + [429] * 8
    httpx.delete(f"{second.url}/v1/keys/{made['id']}", headers=headers, timeout=60)
    wait_until(lambda: first.get("/v1/key", made["key"]) == 401)
    assert second.get("/v1/key", made["key"]) == 401


def _requests(url: str, admin: str, id: str) -> int:
    rows = httpx.get(
        f"{url}/v1/usage?key={id}", headers={"authorization": f"Bearer {admin}"}, timeout=60
    ).json()["data"]
    return sum(row["requests"] for row in rows)


def test_when_one_is_killed_every_client_is_answered_by_the_other(pair) -> None:
    first, second, admin = pair
    answered: list[bool] = []
    ended = threading.Event()

    def client() -> None:
        both = [
            openai.OpenAI(base_url=each.url + "/v1", api_key=admin, max_retries=2) for each in (first, second)
        ]
        while not ended.is_set():
            answered.append(any(_answers(each) for each in both))

    threads = [threading.Thread(target=client) for _ in range(4)]
    for thread in threads:
        thread.start()
    wait_until(lambda: len(answered) > 40)
    first.end(signal.SIGKILL)
    before = len(answered)
    wait_until(lambda: len(answered) > before + 40)
    ended.set()
    for thread in threads:
        thread.join()
    assert all(answered)
    first.start()
    first.wait()
    assert first.post(admin).status_code == 200


def _answers(client: openai.OpenAI) -> bool:
    try:
        return bool(client.completions.create(model="m", prompt="a").choices)
    except openai.APIConnectionError:
        return False


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGQUIT])
def test_requests_are_refused_while_postgresql_is_stopped_and_then_served(
    tmp_path: Path, how: signal.Signals
) -> None:
    with postgres() as cluster, served(Stub()) as stub:
        gateway = GatewayProcess(tmp_path / "a", stub.url, cluster.database())
        try:
            gateway.wait()
            admin = gateway.admin()
            assert gateway.post(admin).status_code == 200
            id = admin.split("-")[1]
            wait_until(lambda: _requests(gateway.url, admin, id) == 1)
            stub.mode = "stall"
            running: list[int] = []
            thread = threading.Thread(target=lambda: running.append(gateway.post(admin).status_code))
            thread.start()
            wait_until(lambda: len(stub.requests) == 2)
            cluster.stop(how)
            stub.mode = "ok"
            wait_until(lambda: gateway.post(admin).status_code == 503)
            assert "start PostgreSQL" in gateway.post(admin).json()["error"]["message"]
            assert gateway.post("").status_code == 401
            assert (gateway.get("/health"), gateway.get("/ready")) == (200, 503)
            stub.released.set()
            thread.join()
            assert running == [200]  # it was under way
            cluster.start()
            wait_until(lambda: gateway.post(admin).status_code == 200)
            wait_until(lambda: gateway.get("/ready") == 200)
            done = sum(1 for _ in stub.requests)
            wait_until(lambda: _requests(gateway.url, admin, id) == done)
            assert "Traceback" not in gateway.log.read_text()
        finally:
            gateway.end()


def test_a_gateway_that_starts_before_postgresql_ends_and_a_later_start_works(tmp_path: Path) -> None:
    with postgres() as cluster, served(Stub()) as stub:
        url = cluster.database()
        cluster.stop()
        gateway = GatewayProcess(tmp_path / "a", stub.url, url)
        assert gateway.process.wait(scaled(60)) == 1  # no permanent failure: a supervisor starts it again
        assert "start PostgreSQL" in gateway.log.read_text()
        cluster.start()
        gateway.start()
        gateway.wait()
        gateway.end()


def test_a_postgresql_that_hangs_is_a_503(tmp_path: Path) -> None:
    with postgres() as cluster, served(Stub()) as stub:
        gateway = GatewayProcess(tmp_path / "a", stub.url, cluster.database())
        try:
            gateway.wait()
            admin = gateway.admin()
            assert gateway.post(admin).status_code == 200
            _signal_all(cluster, signal.SIGSTOP)
            try:
                wait_until(lambda: gateway.get("/ready") == 503)
                wait_until(lambda: gateway.post(admin).status_code == 503)
            finally:
                _signal_all(cluster, signal.SIGCONT)
            wait_until(lambda: gateway.post(admin).status_code == 200)
        finally:
            gateway.end()


def _signal_all(cluster: Cluster, number: signal.Signals) -> None:
    assert cluster._process is not None
    pid = cluster._process.pid
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    for each in (pid, *map(int, children)):
        os.kill(each, number)


HOLDER = """
import asyncio, sys
from rondo.control.config import QueueConfig
from rondo.control.queue.leases import Leases
from rondo.control.queue.maintain import Maintenance
from rondo.control.queue.queue import Queue
from rondo.control.store.store import Store
store = Store(sys.argv[1])
queue, leases = Queue(store), Leases(store, QueueConfig(lease=1.0, rest=0.0))
async def main():
    taken = await leases.take("doomed", ["m"], 5)
    maintenance = Maintenance(queue, leases, 1.5)
    while True:
        print(len(taken), await maintenance.run() is not None, flush=True)
        await asyncio.sleep(0.3)
asyncio.run(main())
"""


def test_duties_and_leases_of_a_killed_process_pass_to_the_other(cluster: Cluster) -> None:
    """No request is lost: those that it had leased are leased again."""
    url = cluster.database()
    store = Store(url)
    queue = Queue(store)
    leases = Leases(store, QueueConfig(lease=1.0, rest=0.0))
    group = queue.put([New("m", str(i)) for i in range(20)], "me").result()
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDER, url],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(SOURCES)},
    )
    assert holder.stdout is not None
    assert holder.stdout.readline() == "5 True\n"
    maintenance = Maintenance(queue, leases, 1.5)
    assert run(maintenance.run()) is None  # the other has the duty
    holder.kill()
    holder.wait()
    holder.stdout.close()
    wait_until(lambda: run(maintenance.run()) is not None)
    done: set[str] = set()

    async def work() -> None:
        for each in await leases.take("heir", ["m"], 20):
            assert await leases.finish([Finished(each.id, each.lease, each.body)]) == ["done"]
            done.add(each.body)

    def all_done() -> bool:
        run(maintenance.run())
        run(work())
        return len(done) == 20

    wait_until(all_done)
    ended = queue.group(group.name).result()
    assert (ended.unfinished, ended.ended is not None) == (0, True)
    store.close()
