"""Adapters over HTTP: asked for by name, listed with their base, loaded and unloaded by the operator."""

import shutil
from pathlib import Path

import httpx
import openai
import pytest
import torch

from rondo.client.types import SamplingParams
from rondo.engine.config import EngineConfig
from rondo.engine.entrypoints.llm import LLM
from rondo.models import load
from rondo.models.adapters import LoraSpec, attach_lora, detach, save_lora, trainable
from rondo.server.config import ServerConfig
from server.running import Running, start

BODY = {"prompt": "abc de", "max_tokens": 8, "ignore_eos": True, "temperature": 0, "return_token_ids": True}


@pytest.fixture(scope="module")
def adapters(model_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("adapters")
    model = load(model_folder)
    for seed, name in enumerate(("listed", "other")):
        attach_lora(model, LoraSpec(r=4))
        with torch.no_grad():
            for parameter in trainable(model):
                parameter.normal_(0.0, 0.3, generator=torch.Generator().manual_seed(seed))
        save_lora(model, folder / "served" / name)
        detach(model)
    shutil.move(folder / "served" / "other", folder / "other")
    return folder


@pytest.fixture(scope="module")
def operated(model_folder: Path, adapters: Path):
    engine = EngineConfig(max_num_seqs=8, adapters_dir=str(adapters / "served"))
    config = ServerConfig(port=0, served_model_name="tiny", api_key="user", admin_key="operator")
    yield from start(model_folder, engine, config)


@pytest.fixture
def user(operated: Running):
    with httpx.Client(base_url=operated.url, headers={"Authorization": "Bearer user"}, timeout=30) as client:
        yield client


@pytest.fixture
def admin(operated: Running):
    with httpx.Client(
        base_url=operated.url, headers={"Authorization": "Bearer operator"}, timeout=30
    ) as client:
        yield client
        client.post("/v1/unload_lora_adapter", json={"lora_name": "x"})


def tokens(client: httpx.Client, model: str) -> list[int]:
    answer = client.post("/v1/completions", json=BODY | {"model": model})
    assert answer.status_code == 200, answer.text
    assert answer.json()["model"] == model
    return answer.json()["choices"][0]["token_ids"]


def test_an_adapter_answers_by_its_name(user: httpx.Client, model_folder: Path, adapters: Path) -> None:
    llm = LLM(model_folder, config=EngineConfig(adapters_dir=str(adapters / "served")))
    sampling = {"max_tokens": 8, "ignore_eos": True, "temperature": 0.0}

    want = llm.generate(["abc de"] * 2, SamplingParams(**sampling), adapter=["listed", None])
    assert [tokens(user, "listed"), tokens(user, "tiny")] == [o.outputs[0].token_ids for o in want]
    assert tokens(user, "listed") != tokens(user, "tiny")


def test_the_openai_client_lists_and_streams_it(operated: Running) -> None:
    client = openai.OpenAI(base_url=operated.url + "/v1", api_key="user")
    cards = {card.id: card for card in client.models.list()}
    assert cards.keys() == {"tiny", "listed"}
    assert (cards["tiny"].parent, cards["listed"].parent) == (None, "tiny")
    assert client.models.retrieve("listed").parent == "tiny"
    chunks = client.chat.completions.create(
        model="listed", messages=[{"role": "user", "content": "abc"}], max_tokens=4, stream=True
    )
    assert {chunk.model for chunk in chunks} == {"listed"}


def test_loading_and_unloading(admin: httpx.Client, user: httpx.Client, adapters: Path) -> None:
    """Names and answers are vLLM's."""
    body = {"lora_name": "x", "lora_path": str(adapters / "other")}
    answer = admin.post("/v1/load_lora_adapter", json=body)
    assert (answer.status_code, answer.text) == (200, "Success: LoRA adapter 'x' added successfully.")
    first = tokens(user, "x")
    again = admin.post("/v1/load_lora_adapter", json=body)
    assert again.status_code == 400
    assert "set 'load_inplace' to True" in again.json()["error"]["message"]
    body["lora_path"] = str(adapters / "served" / "listed")
    assert admin.post("/v1/load_lora_adapter", json=body | {"load_inplace": True}).status_code == 200
    assert tokens(user, "x") == tokens(user, "listed") != first
    answer = admin.post("/v1/unload_lora_adapter", json={"lora_name": "x"})
    assert (answer.status_code, answer.text) == (200, "Success: LoRA adapter 'x' removed successfully.")
    missing = admin.post("/v1/unload_lora_adapter", json={"lora_name": "x"})
    assert missing.status_code == 404
    assert "'x' cannot be found" in missing.json()["error"]["message"]
    gone = user.post("/v1/completions", json=BODY | {"model": "x"})
    assert (gone.status_code, gone.json()["error"]["code"]) == (404, "model_not_found")


@pytest.mark.parametrize(
    ("body", "status", "message"),
    [
        ({"lora_name": "x"}, 400, "lora_path is required"),
        ({"lora_name": "", "lora_path": "y"}, 400, "must be provided"),
        ({"lora_name": "tiny", "lora_path": "y"}, 400, "the name of the model itself"),
        ({"lora_name": "x", "lora_path": "/nowhere/at/all"}, 404, "no adapter's folder /nowhere/at/all"),
        ({"lora_name": "x", "lora_path": "~nobody-here/x"}, 400, "no user '~nobody-here'"),
        ({"lora_name": "x", "lora_path": "x" * 10_000}, 400, "longer than the file system allows"),
        ({"lora_name": "x", "lora_path": "/"}, 400, "has no adapter_config.json"),
        ({"lora_name": "x", "lora_path": "/", "load_in_place": True}, 400, "Did you mean load_inplace"),
    ],
)
def test_what_cannot_be_loaded(admin: httpx.Client, body: dict[str, str], status: int, message: str) -> None:
    answer = admin.post("/v1/load_lora_adapter", json=body)
    assert answer.status_code == status
    assert message in answer.json()["error"]["message"]


@pytest.mark.parametrize("verb", ["load", "unload"])
def test_users_may_not(operated: Running, user: httpx.Client, running: Running, verb: str) -> None:
    """Neither with the users' key nor where no admin key is set."""
    path = f"/v1/{verb}_lora_adapter"
    assert user.post(path, json={"lora_name": "listed"}).status_code == 401
    assert httpx.post(operated.url + path, json={}).status_code == 401
    unset = httpx.post(running.url + path, json={"lora_name": "listed"})
    assert unset.status_code == 403
    assert "server.admin_key" in unset.json()["error"]["message"]
    assert operated.engine.has_adapter("listed")


def test_what_is_loaded_is_counted(user: httpx.Client, operated: Running) -> None:
    tokens(user, "listed")
    assert (
        'rondo:adapters_loaded{engine="0",model_name="tiny"} 1.0' in httpx.get(operated.url + "/metrics").text
    )
