"""Options of the server that change what clients may ask for."""

from pathlib import Path

import httpx
import pytest

from rondo.base.errors import RondoError
from rondo.engine.config import EngineConfig
from rondo.models import load
from rondo.models.adapters import LoraSpec, attach_lora, save_adapter
from rondo.server.config import ServerConfig
from rondo.server.load import load_app
from server.running import start

QUESTION = {"messages": [{"role": "user", "content": "abc"}], "max_tokens": 2}


def test_several_keys_several_names_an_adapter_and_a_template(model_folder: Path, tmp_path: Path) -> None:
    model = load(model_folder)
    attach_lora(model, LoraSpec(r=2, alpha=4, targets=("q_proj",)))
    save_adapter(model, tmp_path / "lora")
    template = tmp_path / "short.jinja"
    template.write_text("{% for m in messages %}{{ m.content }}{% endfor %}")
    config = ServerConfig(
        port=0,
        api_key=["first", "second"],
        served_model_name=["shown", "other"],
        chat_template=str(template),
        adapters={"polite": str(tmp_path / "lora")},
    )
    running = start(model_folder, config=config)
    with httpx.Client(base_url=next(running).url, timeout=30) as client:
        for key, status in (("first", 200), ("second", 200), ("third", 401), ("second,first", 401)):
            answer = client.get("/v1/models", headers={"Authorization": f"Bearer {key}"})
            assert answer.status_code == status
        client.headers["Authorization"] = "Bearer second"
        for asked, named in (("shown", "shown"), ("other", "shown"), ("polite", "polite")):
            answer = client.post("/v1/chat/completions", json={"model": asked, **QUESTION})
            assert (answer.status_code, answer.json()["model"]) == (200, named)
            short = answer.json()["usage"]["prompt_tokens"]
        assert client.post("/v1/chat/completions", json={"model": "tiny", **QUESTION}).status_code == 404
    assert next(running, None) is None
    running = start(model_folder, config=ServerConfig(port=0))
    with httpx.Client(base_url=next(running).url, timeout=30) as client:
        answer = client.post("/v1/chat/completions", json={"model": model_folder.name, **QUESTION})
        assert answer.json()["usage"]["prompt_tokens"] > short
    assert next(running, None) is None


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (
            {"chat_template": "/nowhere/t.jinja"},
            "the chat template /nowhere/t.jinja cannot be read: No such file",
        ),
        ({"adapters": {"a": "/nowhere/lora"}}, "/nowhere/lora"),
    ],
)
def test_what_cannot_be_read_ends_the_start(model_folder: Path, options: dict[str, str], says: str) -> None:
    with pytest.raises(RondoError) as caught:
        load_app(model_folder, EngineConfig(), ServerConfig(port=0, **options))
    assert says in caught.value.message


def test_the_template_itself_will_do(model_folder: Path) -> None:
    config = ServerConfig(port=0, chat_template="{{ messages[0].content }}")
    running = start(model_folder, config=config)
    assert next(running).engine.tokenizer.render([{"role": "user", "content": "abc"}]) == "abc"
    assert next(running, None) is None
