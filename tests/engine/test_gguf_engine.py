"""The engine serves a GGUF file like the model folder that it was made from."""

from pathlib import Path

import pytest

from rondo import models
from rondo.base.errors import ConfigError
from rondo.client.types import SamplingParams
from rondo.engine.config import EngineConfig
from rondo.engine.entrypoints.llm import LLM
from rondo.engine.vllm.load import load_vllm
from rondo.models.files.gguf.export import export_gguf
from rondo.models.quantized.parts import QuantizedLinear
from support.tiny import tiny_model, tiny_tokenizer

GREEDY = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    models.save(tiny_model(hidden_size=64, intermediate_size=96, head_dim=16), tmp_path / "model")
    tiny_tokenizer().save(tmp_path / "model")
    return tmp_path / "model"


def answers(llm: LLM) -> list[list[int]]:
    prompts = ["the user asks", "sort", "reverse add"]
    return [list(output.outputs[0].token_ids) for output in llm.generate(prompts, GREEDY)]


def test_the_same_tokens(folder: Path, tmp_path: Path) -> None:
    file = export_gguf(folder, tmp_path / "file.gguf")
    assert answers(LLM(file)) == answers(LLM(folder))


@pytest.mark.parametrize("type_name", ["Q8_0", "Q4_0"])
def test_quantized_weights_stay_quantized_on_a_cpu(type_name: str, folder: Path, tmp_path: Path) -> None:
    file = export_gguf(folder, tmp_path / "file.gguf", type_name)
    llm = LLM(file, config=EngineConfig(device="cpu", dtype="float32"))
    assert isinstance(llm.core.model.layers[0].mlp.down, QuantizedLinear)  # type: ignore[union-attr]
    plain = models.load(file).float().eval()
    whole = LLM(plain, tiny_tokenizer(), EngineConfig(device="cpu", dtype="float32"))
    assert [len(answer) for answer in answers(llm)] == [12] * 3
    assert [answer[0] for answer in answers(llm)] == [answer[0] for answer in answers(whole)]


def test_vllm_names_the_command_that_converts(folder: Path, tmp_path: Path) -> None:
    file = export_gguf(folder, tmp_path / "file.gguf")
    with pytest.raises(ConfigError, match=rf"rondo model export {file} FOLDER"):
        load_vllm(file, EngineConfig(backend="vllm"))
