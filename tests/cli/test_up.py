"""`rondo up` as processes: one URL for OpenAI's client, with engines that are killed, keys, logs and an orderly end."""

import asyncio
import json
import os
import shlex
import signal
from collections.abc import Iterator

import httpx
import openai
import pytest

from rondo.cli.options.examples import EXAMPLES
from support.home import own_home
from support.served import write_model
from support.up import Up, running_up
from support.waiting import wait_until

MESSAGES = [{"role": "user", "content": "hi"}]


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    home = own_home(tmp_path_factory.mktemp("up") / "home")
    write_model(home / "models" / "toy")
    with running_up(home, "toy", "--gateway.keys=required") as running:
        yield running


@pytest.fixture(scope="module")
def key(up: Up) -> str:
    file = up.home / "admin-key"
    assert file.stat().st_mode & 0o777 == 0o600
    return file.read_text().strip()


def test_the_clients_of_openai_work_with_a_key(up: Up, key: str) -> None:
    client = up.client(key)
    assert [model.id for model in client.models.list()] == ["toy"]
    answer = client.chat.completions.create(model="toy", messages=MESSAGES, max_tokens=4)
    assert answer.usage is not None
    chunks = list(client.chat.completions.create(model="toy", messages=MESSAGES, max_tokens=4, stream=True))
    assert all(chunk.choices for chunk in chunks)
    response = client.responses.create(model="toy", input="hi", max_output_tokens=4)
    assert response.usage is not None

    async def many() -> list[int]:
        other = openai.AsyncOpenAI(base_url=up.url + "/v1", api_key=key, max_retries=0)
        calls = (other.completions.create(model="toy", prompt=f"{n}", max_tokens=2) for n in range(8))
        return [each.usage.completion_tokens for each in await asyncio.gather(*calls) if each.usage]

    assert len(asyncio.run(many())) == 8
    with pytest.raises(openai.AuthenticationError):
        up.client("wrong").models.list()


def test_keys_are_made_on_the_command_line_and_their_use_is_counted(up: Up, key: str) -> None:
    text = up.rondo("keys", "create", "ann", "--models", "toy", "--expires", "1h").strip()
    up.client(text).completions.create(model="toy", prompt="a", max_tokens=1)
    assert "ann" in up.rondo("keys", "list")
    wait_until(lambda: "ann" in up.rondo("keys", "usage"))
    up.rondo("keys", "revoke", text.split("-")[1])
    wait_until(lambda: _refused(up, text))


def _refused(up: Up, text: str) -> bool:
    try:
        up.client(text).models.list()
    except openai.AuthenticationError as error:
        return error.code == "revoked_api_key"
    return False


def test_a_killed_engine_comes_back_and_a_killed_gateway_too(up: Up, key: str) -> None:
    for part in ("engine-1", "gateway"):
        pid = up.parts()[part]["pid"]
        assert isinstance(pid, int)
        os.kill(pid, signal.SIGKILL)
        wait_until(lambda part=part, pid=pid: up.parts()[part]["pid"] not in (None, pid))
        wait_until(lambda: _answers(up, key), 240)
        assert up.parts()[part]["restarts"] == 1
    assert "was killed by signal 9" in json.dumps(up.parts())


def _answers(up: Up, key: str) -> bool:
    body = {"model": "toy", "messages": MESSAGES, "max_tokens": 2}
    try:
        headers = {"authorization": f"Bearer {key}"}
        return httpx.post(up.url + "/v1/chat/completions", json=body, headers=headers).status_code == 200
    except httpx.TransportError:
        return False


def test_request_ids_reach_the_engines_log(up: Up, key: str) -> None:
    headers = {"authorization": f"Bearer {key}", "x-request-id": "find-me"}
    body = {"model": "toy", "prompt": "a", "max_tokens": 1}
    assert httpx.post(up.url + "/v1/completions", json=body, headers=headers).status_code == 200
    for part in ("gateway", "engine-1"):
        wait_until(lambda part=part: "find-me" in up.rondo("logs", part))
    headers = {"authorization": f"Bearer {key}"}
    piece = httpx.get(up.url + "/v1/health/logs/engine-1", headers=headers).json()
    assert "find-me" in piece["text"]
    assert httpx.get(up.url + "/v1/health/logs", headers=headers).json()["data"] == ["engine-1", "gateway"]


def test_a_second_start_names_the_running_one(up: Up) -> None:
    assert up.url in up.rondo("up", "toy", "--port=0", code=5)


@pytest.mark.parametrize("verb", ["ps", "logs", "keys create", "keys list", "keys usage"])
def test_the_examples_of_the_help_pages_work(up: Up, verb: str) -> None:
    up.rondo(*shlex.split(EXAMPLES[f"rondo {verb}"])[1:])


def test_a_file_of_prompts_is_answered_through_the_queue(up: Up, key: str) -> None:
    (up.home / "chat.jsonl").write_text('"hi"\n{"messages": [{"role": "user", "content": "hi"}]}\n')
    up.env["RONDO_BASE_URL"] = up.url
    headers = {"Authorization": f"Bearer {key}"}
    wait_until(lambda: httpx.get(f"{up.url}/v1/queue", headers=headers).json()["workers"] == 1, 240)
    assert "1 workers" in up.rondo("queue", "list")
    command = EXAMPLES["rondo generate"].replace("demo", "toy")
    for name in ("chat.jsonl", "answers.jsonl"):
        command = command.replace(name, str(up.home / name))
    assert "2 responses" in up.rondo(*shlex.split(command)[1:])
    lines = [json.loads(line) for line in (up.home / "answers.jsonl").read_text().splitlines()]
    assert [(line["place"], line["error"]) for line in lines] == [(0, None), (1, None)]
    assert all(line["flop_count"] > 0 for line in lines)
    group = json.loads(up.rondo("queue", "list", "--json"))["groups"][0]["id"]
    for verb in ("list", "show", "cancel", "retry", "clear"):
        up.rondo(*shlex.split(EXAMPLES[f"rondo queue {verb}"].replace("GROUP", group))[1:])
