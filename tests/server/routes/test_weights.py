"""A new version of the weights over HTTP: vLLM's verbs and bodies, all of a version or nothing."""

import asyncio
import json
import shutil
import threading
from pathlib import Path

import httpx
import pytest

import rondo
from rondo.base.errors import ConfigError, Conflict, InvalidRequest, RondoError
from rondo.engine.config import EngineConfig
from rondo.models import load, new, save
from rondo.server.config import ServerConfig
from rondo.server.routes.weights import source_of
from server.running import begun, start
from support.alone import greedy
from support.engines import Pace

KEY = {"X-Admin-Key": "operator"}
PROMPT = [70, 71, 72, 73, 74]


@pytest.fixture(scope="module")
def versions(model_folder, tmp_path_factory):
    """The served model's shape with other weights; one that is cut off, and one of another shape."""
    folder = tmp_path_factory.mktemp("versions")
    config = json.loads((model_folder / "config.json").read_text())
    for seed in (1, 2):
        save(new(config, seed=seed), folder / str(seed))
    shutil.copytree(folder / "1", folder / "cut")
    file = folder / "cut" / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-9])
    save(new(config | {"num_hidden_layers": 1}, seed=0), folder / "smaller")
    shutil.copytree(model_folder, folder / "0")
    return folder


@pytest.fixture(scope="module")
def operated(model_folder):
    config = ServerConfig(port=0, served_model_name="tiny", api_key="user", admin_key="operator")
    yield from start(model_folder, EngineConfig(max_num_seqs=8, block_size=4), config)


@pytest.fixture
def client(operated):
    with rondo.Client(operated.url, api_key="user", admin_key="operator") as client:
        yield client
        client.resume()
        client.abort_weight_update()


def answer(client, count=12):
    options = {"max_tokens": count, "temperature": 0, "ignore_eos": True, "return_token_ids": True}
    return client.complete(PROMPT, **options)["choices"][0]


def version(client):
    return client.weight_info()["weight_version"]


def test_the_steps_and_answers_are_vllms(client, operated, versions):
    """Requests that run in the middle of it go on, and say which version made each token."""
    before = version(client)
    runner = operated.engine.core.runner
    fast = runner.run
    pace = runner.run = Pace(fast)
    running = threading.Thread(target=lambda: answers.append(answer(client, 100)))
    answers = []
    try:
        running.start()
        begun(operated)
        assert client.init_weight_transfer_engine({}) == {"message": "Weight transfer initialized"}
        assert client.pause("keep") == {"status": "paused"}
        assert client.start_weight_update() == {"message": "Weight update started"}
        assert client.weight_info()["updating"]
        update = {"path": str(versions / "1"), "version": before + 1}
        assert client.update_weights(update) == {"message": "Weights updated"}
        assert version(client) == before
        assert client.finish_weight_update(str(before + 1)) == {"message": "Weight update finished"}
        pace.hurry()
        assert client.resume() == {"status": "resumed"}
        running.join(30)
    finally:
        runner.run = fast
    assert sorted(set(answers[0]["weight_versions"])) == [before, before + 1]
    info = client.weight_info()
    assert (info["weight_version"], info["updating"], info["whole"]) == (before + 1, False, True)
    choice = answer(client)
    assert choice["token_ids"] == greedy(load(versions / "1"), PROMPT, 12)
    assert choice["weight_versions"] == [before + 1] * 12


def test_push_is_the_steps_in_one_call(client, operated, versions):
    client.push_weights(versions / "2", version(client) + 1)
    assert answer(client)["token_ids"] == greedy(load(versions / "2"), PROMPT, 12)

    async def main():
        async with rondo.AsyncClient(operated.url, admin_key="operator") as client:
            after = (await client.weight_info())["weight_version"] + 1
            await client.push_weights(versions / "1", after)
            with pytest.raises(InvalidRequest):
                await client.push_weights(versions / "cut", after + 1)
            assert (await client.weight_info())["updating"] is False

    asyncio.run(main())
    assert answer(client)["token_ids"] == greedy(load(versions / "1"), PROMPT, 12)


@pytest.mark.parametrize(
    ("name", "says"), [("cut", "truncated"), ("none", "not a folder"), ("smaller", "another model")]
)
def test_a_bad_folder_ends_the_update_and_the_old_version_serves(client, versions, name, says):
    before, tokens = version(client), answer(client)["token_ids"]
    client.start_weight_update()
    with pytest.raises(InvalidRequest, match=says) as caught:
        client.update_weights({"path": str(versions / name), "version": before + 1})
    assert caught.value.param == "update_info"
    assert version(client) == before
    assert client.weight_info()["updating"] is False
    with pytest.raises(Conflict, match="no weight update is in progress"):
        client.finish_weight_update()
    assert answer(client)["token_ids"] == tokens


def test_a_path_that_no_folder_has_leaves_the_update_open(client, versions, monkeypatch):
    client.start_weight_update()
    with pytest.raises(InvalidRequest, match="longer than the file system allows"):
        client.update_weights({"path": "x" * 300, "version": version(client) + 1})
    monkeypatch.setenv("HOME", str(versions))
    client.update_weights({"path": "~/1", "version": version(client) + 1})
    client.finish_weight_update()
    assert answer(client)["token_ids"] == greedy(load(versions / "1"), PROMPT, 12)


def test_a_folder_that_goes_bad_before_the_end_changes_nothing(client, versions, tmp_path):
    before, tokens = version(client), answer(client)["token_ids"]
    shutil.copytree(versions / "2", tmp_path / "next")
    client.start_weight_update()
    client.update_weights({"path": str(tmp_path / "next"), "version": before + 1})
    shutil.rmtree(tmp_path / "next")
    with pytest.raises(RondoError):
        client.finish_weight_update()
    assert (version(client), client.weight_info()["updating"]) == (before, False)
    assert answer(client)["token_ids"] == tokens


def test_out_of_order_is_a_conflict(client, versions):
    here = str(versions / "1")
    for verb in (lambda: client.update_weights({"path": here}), client.finish_weight_update):
        with pytest.raises(Conflict, match="start_weight_update first"):
            verb()
    client.start_weight_update()
    with pytest.raises(Conflict, match="already in progress"):
        client.start_weight_update()
    with pytest.raises(Conflict, match="no weights were given"):
        client.finish_weight_update(99)
    client.update_weights({"path": here})
    with pytest.raises(InvalidRequest, match="which version"):
        client.finish_weight_update()
    assert client.abort_weight_update() == {"message": "Weight update aborted"}
    client.start_weight_update()
    with pytest.raises(Conflict, match="not newer"):
        client.update_weights({"path": here, "version": version(client)})


@pytest.mark.parametrize("version", [2**63, "9" * 5000, -1, 1.5, True, "new"])
def test_a_version_is_a_number_that_can_be_counted(client, versions, version):
    client.start_weight_update()
    with pytest.raises(InvalidRequest, match="a version is a whole number"):
        client.update_weights({"path": str(versions / "1"), "version": version})
    client.abort_weight_update()


def test_the_two_places_of_a_version_agree(client, versions):
    next_one = version(client) + 1
    client.start_weight_update()
    client.update_weights({"path": str(versions / "1"), "version": next_one})
    with pytest.raises(InvalidRequest, match=f"given as version {next_one}, not {next_one + 1}"):
        client.finish_weight_update(next_one + 1)
    client.finish_weight_update(next_one)
    client.start_weight_update()
    client.update_weights({"path": str(versions / "1")})
    client.finish_weight_update(str(next_one + 1))
    assert version(client) == next_one + 1


@pytest.mark.parametrize(
    ("verb", "body", "param"),
    [
        ("update_weights", {"update_info": [{"path": "x"}]}, "update_info"),
        ("update_weights", {"update_info": {"path": "x", "packed": True}}, "update_info"),
        ("update_weights", {"update_info": {"path": 3}}, "update_info"),
        ("update_weights", {"update_info": {"path": ""}}, "update_info"),
        ("update_weights", {"update_info": {"path": "x" * 300}}, "update_info"),
        ("update_weights", {"update_info": {"path": "~nobody-here/x"}}, "update_info"),
        ("update_weights", {"update_info": {"path": "x\0y"}}, "update_info"),
        ("update_weights", {"update_info": {"path": "x", "version": -1}}, "update_info"),
        ("update_weights", {"update_info": {"path": "x", "version": True}}, "update_info"),
        ("update_weights", {"update_info": {"path": "x"}, "now": 1}, "now"),
        ("update_weights", {}, "update_info"),
        ("finish_weight_update", {"weight_version": "step-3"}, "weight_version"),
        ("finish_weight_update", {"version": 3}, "version"),
        ("init_weight_transfer_engine", {"init_info": {"master_port": 1}}, "init_info"),
        ("start_weight_update", {"force": True}, None),
    ],
)
def test_what_is_not_known_is_refused_by_name(operated, client, verb, body, param):
    answer = httpx.post(f"{operated.url}/{verb}", json=body, headers=KEY)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)
    assert client.weight_info()["updating"] is False


def test_every_verb_of_the_client_reaches_its_route(client):
    assert client.is_paused() == {"is_paused": False}
    assert client.sleep() == {"status": "sleeping", "level": 1}
    assert client.is_sleeping() == {"is_sleeping": True}
    assert client.wake_up(["weights"]) == {"status": "sleeping", "tags": ["weights"]}
    assert client.wake_up() == {"status": "awake", "tags": ["weights", "kv_cache"]}
    assert client.is_sleeping() == {"is_sleeping": False}
    assert client.reset_prefix_cache() == {"success": True}
    assert client.abort_requests(["none"]) == {"status": "aborted", "aborted": 0}
    with pytest.raises(RondoError, match="nowhere"):
        client.load_lora_adapter("x", "/nowhere")
    with pytest.raises(RondoError, match="cannot be found"):
        client.unload_lora_adapter("x")


def test_without_the_admin_key(operated, monkeypatch):
    monkeypatch.delenv("RONDO_ADMIN_KEY", raising=False)
    with rondo.Client(operated.url) as client, pytest.raises(ConfigError, match="admin_key"):
        client.pause()
    with rondo.Client(operated.url, admin_key="user") as client, pytest.raises(RondoError) as refused:
        client.start_weight_update()
    assert (refused.value.status, refused.value.code) == (401, "invalid_admin_key")
    monkeypatch.setenv("RONDO_ADMIN_KEY", "operator")
    with rondo.Client(operated.url) as client:
        assert client.weight_info()["model"] == "tiny"


def test_a_folder_is_where_the_server_is_asked_for_it():
    """Whoever reads it may work elsewhere."""
    found, version = source_of({"path": "x/y", "version": "7"})
    assert (found.folder, version) == (Path("x/y").absolute(), 7)
