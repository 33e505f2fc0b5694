"""The operator's verbs, under vLLM's names: who may call them, what they answer, what becomes of requests."""

import asyncio
import threading

import httpx
import pytest

from rondo.base.errors import ConfigError
from rondo.cli.options.tree import read_command_line
from rondo.client.types import GenerateRequest, SamplingParams
from rondo.engine.config import EngineConfig
from rondo.server.config import ServerConfig
from rondo.web.http import EventStream
from server.running import begun, start
from support.engines import Pace
from support.waiting import until, wait_until

KEY = {"X-Admin-Key": "operator"}
VERBS = (
    *(
        ("POST", verb)
        for verb in (
            *("sleep", "wake_up", "pause", "resume", "reset_prefix_cache", "abort_requests"),
            *("init_weight_transfer_engine", "start_weight_update", "update_weights", "finish_weight_update"),
            *("abort_weight_update", "v1/load_lora_adapter", "v1/unload_lora_adapter"),
        )
    ),
    *(("GET", verb) for verb in ("is_sleeping", "is_paused", "weight_info")),
)

BODY = {"model": "tiny", "prompt": "abc", "max_tokens": 120, "ignore_eos": True, "temperature": 0}


@pytest.fixture(scope="module")
def operated(model_folder):
    config = ServerConfig(port=0, served_model_name="tiny", api_key="user", admin_key="operator")
    for running in start(model_folder, EngineConfig(max_num_seqs=8, block_size=4), config):
        runner = running.engine.core.runner
        runner.run = Pace(runner.run)
        runner.run.hurry()
        yield running


@pytest.fixture
def pace(operated):
    """At first what runs is slow, so that it is still there when an operator comes."""
    pace = operated.engine.core.runner.run
    pace.slow_down()
    yield pace
    pace.hurry()


@pytest.fixture
def admin(operated):
    with httpx.Client(base_url=operated.url, headers=KEY, timeout=30) as client:
        yield client
        client.post("/wake_up").raise_for_status()
        client.post("/resume").raise_for_status()


class Asking(threading.Thread):
    """A client in the middle of a request."""

    def __init__(self, url, id="any", **changes):
        super().__init__()
        self.url, self.body, self.answer = url + "/v1/completions", BODY | changes, None
        self.headers = {"Authorization": "Bearer user", "X-Request-Id": id}
        self.start()

    def run(self):
        self.answer = httpx.post(self.url, json=self.body, headers=self.headers, timeout=30)

    def reasons(self):
        self.join(30)
        return [choice["finish_reason"] for choice in self.answer.json()["choices"]]


@pytest.mark.parametrize(("method", "verb"), VERBS)
def test_every_verb_needs_the_admin_key(operated, running, method, verb):
    def ask(url, **headers):
        answer = httpx.request(method, f"{url}/{verb}", headers=headers, timeout=60)
        return answer.status_code, answer.json()["error"]["code"]

    assert ask(operated.url) == (401, "invalid_admin_key")
    assert ask(operated.url, Authorization="Bearer user") == (401, "invalid_admin_key")
    assert ask(operated.url, **{"X-Admin-Key": b"op\xe9rator"}) == (401, "invalid_admin_key")
    assert ask(running.url, Authorization="Bearer none") == (403, "admin_key_not_configured")
    answer = httpx.request(method, f"{running.url}/{verb}", timeout=60)
    assert "--server.admin_key" in answer.json()["error"]["message"]
    assert not operated.engine.is_sleeping
    assert not operated.engine.is_paused


def test_the_key_may_come_as_bearer_token(operated):
    for scheme in ("Bearer", "bearer"):
        answer = httpx.get(operated.url + "/is_paused", headers={"Authorization": f"{scheme} operator"})
        assert (answer.status_code, answer.json()) == (200, {"is_paused": False})
    for given in ("operator", "Basic operator", "Bearer", "Bearer operator2"):
        answer = httpx.get(operated.url + "/is_paused", headers={"Authorization": given})
        assert answer.status_code == 401


def test_the_admin_key_is_not_the_users(monkeypatch, tmp_path):
    monkeypatch.setenv("RONDO_HOME", str(tmp_path))
    with pytest.raises(ConfigError, match="admin_key must not be the api_key"):
        read_command_line(["--server.admin_key=a", "--server.api_key=a"])


@pytest.mark.parametrize("level", [1, 2])
def test_sleep_and_wake_keep_what_runs_where_asked_to(operated, admin, pace, level):
    pace.hurry()
    plain = Asking(operated.url)
    plain.join(30)
    pace.slow_down()
    asking = Asking(operated.url)
    begun(operated)
    answer = admin.post(f"/sleep?level={level}&mode=keep")
    assert (answer.status_code, answer.json()) == (200, {"status": "sleeping", "level": level})
    assert admin.get("/is_sleeping").json() == {"is_sleeping": True}
    state = "weights_offloaded" if level == 1 else "discard_all"
    sample = f'engine_sleep_state{{engine="0",model_name="tiny",sleep_state="{state}"}}'
    assert f"rondo:{sample} 1.0" in admin.get("/metrics").text
    assert admin.get("/ready").status_code == 503
    info = {"model": "tiny", "weight_version": 0, "updating": False, "whole": level == 1, "asleep": True}
    assert admin.get("/weight_info").json() == info
    answer = admin.post("/wake_up?tags=weights")
    assert (answer.status_code, answer.json()) == (200, {"status": "sleeping", "tags": ["weights"]})
    assert admin.get("/weight_info").json() == info | {"whole": True, "asleep": False}
    assert admin.get("/is_sleeping").json() == {"is_sleeping": True}
    pace.hurry()
    admin.post("/wake_up", params={"tags": ["kv_cache", "weights"]}).raise_for_status()
    assert admin.get("/is_sleeping").json() == {"is_sleeping": False}
    assert f"rondo:{sample} 0.0" in admin.get("/metrics").text
    assert asking.reasons() == ["length"]
    assert asking.answer.json()["choices"][0]["text"] == plain.answer.json()["choices"][0]["text"]


def test_sleep_and_pause_end_what_runs_by_default_as_vllm_does(operated, admin, pace):
    for verb, back in (("/sleep", "/wake_up"), ("/pause", "/resume")):
        asking = Asking(operated.url)
        begun(operated)
        admin.post(verb).raise_for_status()
        assert asking.reasons() == ["abort"]
        admin.post(back).raise_for_status()


def test_pause_and_resume(operated, admin, pace):
    asking = Asking(operated.url)
    begun(operated)
    assert admin.post("/pause?mode=keep&clear_cache=true").json() == {"status": "paused"}
    assert admin.get("/is_paused").json() == {"is_paused": True}
    assert not asking.answer
    assert admin.post("/resume").json() == {"status": "resumed"}
    assert admin.get("/is_paused").json() == {"is_paused": False}
    pace.hurry()
    assert admin.post("/pause?mode=wait").status_code == 200
    assert asking.reasons() == ["length"]


def test_an_operator_who_leaves_does_not_pause(operated, admin, pace):
    asking = Asking(operated.url)
    begun(operated)
    with pytest.raises(httpx.ReadTimeout):
        admin.post("/pause?mode=wait", timeout=httpx.Timeout(30, read=0.2))
    wait_until(lambda: not operated.engine.core.scheduler.holding)
    pace.hurry()
    assert asking.reasons() == ["length"]
    assert Asking(operated.url, max_tokens=1).reasons() == ["length"]


def test_reset_prefix_cache(operated, admin):
    scheduler, body = operated.engine.core.scheduler, {"prompt": list(range(70, 90)), "max_tokens": 1}

    def hits():
        before = scheduler.counters.prefix_hits
        Asking(operated.url, **body).join(30)
        return scheduler.counters.prefix_hits - before

    hits()
    assert hits() > 0
    assert admin.post("/reset_prefix_cache").json() == {"success": True}
    assert hits() == 0


def test_abort_requests_by_the_ids_of_their_answers(operated, admin, pace):
    """One id is all the prompts and samples of an answer; the others go on."""
    other = Asking(operated.url)
    with httpx.stream(
        "POST",
        operated.url + "/v1/completions",
        json=BODY | {"prompt": ["abc", "d"], "n": 2, "stream": True, "return_token_ids": True},
        headers={"Authorization": "Bearer user"},
        timeout=30,
    ) as answer:
        lines = (line[6:] for line in answer.iter_lines() if line)
        name = httpx.Response(200, content=next(lines)).json()["id"]
        aborted = admin.post("/abort_requests", json={"request_ids": ["unknown", name]})
        assert aborted.json() == {"status": "aborted", "aborted": 1}
        pace.hurry()
        events = [httpx.Response(200, content=line).json() for line in lines if line != "[DONE]"]
    ended = {c["index"]: c["finish_reason"] for e in events for c in e["choices"] if c["finish_reason"]}
    assert ended == dict.fromkeys(range(4), "abort")
    assert other.reasons() == ["length"]


def test_abort_requests_by_the_ids_that_clients_gave(operated, admin, pace):
    """Those in the log: all that was asked with it ends, and is counted once under whatever names it is called."""
    other, *mine = [Asking(operated.url, id) for id in ("theirs", "job-7", "job-7")]
    asyncio.run(until(lambda: sum(operated.engine.load()) == 3))
    aborted = admin.post("/abort_requests", json={"request_ids": ["job-7", "job-7", "job"]})
    assert aborted.json() == {"status": "aborted", "aborted": 2}
    assert [one.reasons() for one in mine] == [["abort"], ["abort"]]
    pace.hurry()
    assert other.reasons() == ["length"]
    assert admin.post("/abort_requests", json={"request_ids": ["job-7"]}).json()["aborted"] == 0


def test_no_ids_are_those_of_all_requests(operated, admin, pace):
    running = [Asking(operated.url) for _ in range(2)]
    asyncio.run(until(lambda: sum(operated.engine.load()) == 2))
    assert admin.post("/abort_requests", json={"request_ids": []}).json() == {
        "status": "aborted",
        "aborted": 2,
    }
    pace.hurry()
    assert [one.reasons() for one in running] == [["abort"], ["abort"]]


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/sleep?level=3", None, "level"),
        ("/sleep?level=deep", None, "level"),
        ("/sleep?mode=later", None, "mode"),
        ("/sleep?depth=1", None, "depth"),
        ("/sleep", {"level": 2}, None),
        ("/pause?mode=stop", None, "mode"),
        ("/pause?clear_cache=maybe", None, "clear_cache"),
        ("/wake_up?tags=gpu", None, "tags"),
        ("/resume?now=1", None, "now"),
        ("/abort_requests", {"request_ids": [], "ids": []}, "ids"),
        ("/abort_requests", {}, "request_ids"),
    ],
)
def test_what_is_not_known_is_refused_by_name(operated, admin, path, body, param):
    answer = admin.post(path, json=body)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)
    assert not operated.engine.is_sleeping
    assert not operated.engine.is_paused


def test_conflicts_are_409(operated, admin):
    asyncio.run(operated.engine.start_weight_update())
    assert admin.post("/sleep").status_code == 409
    assert admin.get("/weight_info").json()["updating"] is True
    asyncio.run(operated.engine.finish_weight_update(1))
    assert admin.get("/weight_info").json()["weight_version"] == 1


def test_what_a_slow_reader_has_not_taken_is_joined_and_not_queued(operated, pace):
    """While the client takes nothing no event is made: then one chunk holds all that came meanwhile."""
    params = SamplingParams(max_tokens=200, ignore_eos=True, temperature=0)
    sent = []

    async def events():
        async for chunk in operated.engine.generate(GenerateRequest("slow", (70, 71), params)):
            yield str(len(chunk.token_ids)).encode()

    async def send(message):
        sent.append(message)
        if len(sent) == 2:
            pace.hurry()
            await until(lambda: not operated.engine.core.has_work)

    async def receive():
        await asyncio.sleep(60)

    asyncio.run(EventStream(events())({}, receive, send))
    counts = [int(message["body"]) for message in sent[1:-1]]
    assert (sum(counts), len(counts)) == (200, 2)
