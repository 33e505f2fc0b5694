"""TRL's own client, as it is published, against `rondo serve`: rollouts, and a GRPO step with them."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rondo import models
from support.peers import peer_python, run_peer
from support.served import Served
from support.tiny import tiny_model, tiny_tokenizer

pytestmark = [pytest.mark.real, pytest.mark.timeout(900)]

TEMPLATE = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
PROMPTS = ["the user asks", "add 3 to 4"]
TALKS = [[{"role": "user", "content": text}] for text in PROMPTS]
OPTIONS: dict[str, Any] = {"n": 2, "max_tokens": 6, "generation_kwargs": {"ignore_eos": True}}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    models.save_into(tiny_model(), folder)
    tiny_tokenizer().with_chat_template(TEMPLATE).save(folder)
    return folder


@pytest.fixture(scope="module")
def results(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    server = Served(folder, tmp_path_factory.mktemp("served"), "--engine.dtype=float32")
    packages = next((peer_python("trl").parents[1] / "lib").glob("python*/site-packages"))
    calls = [
        ["generate", OPTIONS | {"prompts": PROMPTS}],
        ["generate", OPTIONS | {"prompts": [[70, 71], [72, 73, 74]], "logprobs": 2}],
        ["chat", OPTIONS | {"messages": TALKS}],
        ["chat", OPTIONS | {"messages": TALKS, "logprobs": 2}],
    ]
    request = {"trl": str(packages), "model": str(folder), "prompts": PROMPTS, "calls": calls}
    try:
        request["url"] = server.start().wait().url
        written = run_peer(
            "vllm", Path(__file__).with_name("_trl_client.py"), asked=json.dumps(request), seconds=600
        )
        yield json.loads(written.splitlines()[-1])
    finally:
        server.kill()


@pytest.mark.parametrize(("call", "top"), [(0, 0), (1, 2), (2, 0), (3, 2)])
def test_a_call_returns_rollouts(call: int, top: int, results: dict[str, Any]) -> None:
    found = results["calls"][call]
    tokenizer = tiny_tokenizer().with_chat_template(TEMPLATE)
    texts = [tokenizer.encode(prompt) for prompt in PROMPTS]
    talks = [tokenizer.encode(tokenizer.render(talk, add_generation_prompt=True)) for talk in TALKS]
    assert found["prompt_ids"] == [texts, [[70, 71], [72, 73, 74]], talks, talks][call]
    assert [len(ids) for ids in found["completion_ids"]] == [6] * 4
    for ids, logprobs, alternatives in zip(
        found["completion_ids"], found["logprobs"], found["logprob_token_ids"], strict=True
    ):
        for token, values, others in zip(ids, logprobs, alternatives, strict=True):
            assert token in others
            assert len(values) == len(others)
            assert top <= len(others) <= top + 1 if top else len(others) == 1
            assert values == sorted(values, reverse=True)


def test_a_grpo_step_uses_the_servers_rollouts(results: dict[str, Any]) -> None:
    """TRL pushes weights over NCCL and refuses a CPU, so the step ends with the trainer's own weights."""
    step = results["step"]
    assert [len(step["completion_ids"]) > 0, step["grad_norm"] > 0, step["changed"] > 0.5] == [True] * 3
    assert step["sampler_error"] < 1e-4
    own = [float(sum(ids) % 7) for ids in step["completion_ids"]]
    assert step["reward"] == pytest.approx(sum(own) / len(own))
