"""A model saved by us loads in vLLM and, as a GGUF file, in llama.cpp, and both give our tokens. The benchmarks' own
processes of these peers are what is asked, so that what they time is checked too."""

import json
import random
from pathlib import Path
from typing import Any

import pytest

from rondo import models
from rondo.client.types import SamplingParams
from rondo.engine.config import EngineConfig
from rondo.engine.entrypoints.llm import LLM
from rondo.models.files.gguf.export import export_gguf
from support.peers import run_peer
from support.tiny import VOCAB, tiny_model, tiny_tokenizer

pytestmark = [pytest.mark.real, pytest.mark.timeout(900)]

BENCH = Path(__file__).resolve().parents[2] / "bench"
TEXT = "the assistant answers 123 times:\n\n  it's add, sort & countdown — ümläut"
ANSWER = 24


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """vLLM has no attention on a CPU for heads of 8, the tiny model's."""
    path = tmp_path_factory.mktemp("saved") / "tiny"
    models.save(tiny_model(head_dim=32, hidden_size=64), path)
    tiny_tokenizer().save(path)
    return path


@pytest.fixture(scope="module")
def questions() -> list[dict[str, Any]]:
    """Prompts of mixed lengths and answers of mixed lengths together, several samples of one prompt, and a text."""
    source = random.Random(0)
    prompts = [[source.randrange(3, VOCAB) for _ in range(source.randrange(1, 40))] for _ in range(12)]
    lengths = [source.randrange(1, ANSWER + 1) for _ in prompts]
    return [
        {"prompts": prompts, "lengths": lengths, "samples": 1, "temperature": 0},
        {"prompts": prompts[:3], "lengths": [ANSWER] * 12, "samples": 4, "temperature": 0},
        {"text": TEXT},
    ]


@pytest.fixture(scope="module")
def ours(folder: Path, questions: list[dict[str, Any]]) -> list[Any]:
    llm = LLM(folder, config=EngineConfig(dtype="float32"))
    answers: list[Any] = []
    for question in questions[:2]:
        prompts = [prompt for prompt in question["prompts"] for _ in range(question["samples"])]
        params = [
            SamplingParams(temperature=0, max_tokens=length, ignore_eos=True)
            for length in question["lengths"]
        ]
        answers.append([output.outputs[0].token_ids for output in llm.generate(prompts, params)])
    assert len({token for answer in answers[0] for token in answer}) > 20, "answers that could not differ"
    return [*answers, tiny_tokenizer().encode(TEXT)]


def run(peer: str, *command: object, lines: list[dict[str, Any]], **changes: str) -> list[dict[str, Any]]:
    asked = "".join(json.dumps(line) + "\n" for line in lines)
    return [
        json.loads(line)
        for line in run_peer(peer, *command, asked=asked, seconds=600, **changes).splitlines()
    ]


def check(replies: list[dict[str, Any]], ours: list[Any]) -> None:
    ready, *answers, encoded = replies
    assert ready == {"ready": True}
    assert [answer["answers"] for answer in answers] == ours[:2]
    assert encoded["ids"] == ours[2]


def test_llama_cpp(folder: Path, questions: list[dict[str, Any]], ours: list[Any], tmp_path: Path) -> None:
    file = tmp_path / "tiny.gguf"
    export_gguf(folder, file, "F32")
    settings = {"file": str(file), "sequences": 12, "context": 64, "threads": 1, "exact": True}
    check(run("llama", BENCH / "_llama_cpp.py", lines=[settings, *questions]), ours)


@pytest.mark.parametrize("prefix_cache", [False, True], ids=["no prefix cache", "prefix cache"])
def test_vllm(folder: Path, questions: list[dict[str, Any]], ours: list[Any], prefix_cache: bool) -> None:
    settings = {
        "model": str(folder),
        "max_model_len": 128,
        "max_num_seqs": 12,
        "enforce_eager": True,
        "enable_prefix_caching": prefix_cache,
    }
    lines = [settings, *questions]
    check(run("vllm", BENCH / "_vllm.py", lines=lines, VLLM_CPU_OMP_THREADS_BIND="nobind"), ours)
