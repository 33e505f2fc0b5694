"""An engine with quantized weights answers, sleeps, takes new weights and adapters; a learner trains those alone."""

from pathlib import Path
from typing import Any

import pytest
import torch

from rondo.base.errors import ModelError
from rondo.client.types import GenerateRequest, SamplingParams
from rondo.engine.config import EngineConfig
from rondo.engine.core import EngineCore
from rondo.models import Packed, load, save
from rondo.models.adapters import LoraSpec, attach_lora, load_adapter, merge, trainable
from rondo.train.config import OptimConfig
from rondo.train.learner.learner import Learner
from support.adapters import write_lora
from support.families import reference
from support.quantized import GPTQ, change, checkpoint, gptq

GREEDY = SamplingParams(max_tokens=8, temperature=0.0, ignore_eos=True, detokenize=False)
CONFIG = EngineConfig(max_num_seqs=4, block_size=4)
PROMPT = [5, 6, 7, 8, 9]


@pytest.fixture
def theirs(tmp_path: Path) -> Any:
    """transformers' model of the dequantized weights of the folder `model`."""
    return checkpoint("llama2", tmp_path / "model", gptq, GPTQ)


@pytest.fixture
def folder(theirs: Any, tmp_path: Path) -> Path:
    return tmp_path / "model"


def core_of(folder: Path) -> EngineCore:
    return EngineCore(load(folder), CONFIG, reload=lambda: load(folder))


def answer(core: EngineCore, adapter: str | None = None) -> list[int]:
    (request,) = core.add(GenerateRequest("a", PROMPT, GREEDY, adapter=adapter))
    while core.has_work:
        core.step()
    return request.tokens[len(PROMPT) :]


def weight_bytes(core: EngineCore) -> int:
    return sum(parameter.nbytes for parameter in core.model.parameters())


def test_answers_are_those_of_the_dequantized_model(theirs: Any, folder: Path):
    expected = theirs.generate(
        torch.tensor([PROMPT]),
        attention_mask=torch.ones(1, len(PROMPT)),
        do_sample=False,
        max_new_tokens=8,
        eos_token_id=None,
    )
    assert answer(core_of(folder)) == expected[0, len(PROMPT) :].tolist()


@pytest.mark.parametrize("level", [1, 2])
def test_sleep_drops_quantized_weights_too(folder: Path, level: int):
    core = core_of(folder)
    before, size = answer(core), weight_bytes(core)
    core.sleep(level)
    assert weight_bytes(core) == (0 if level == 2 else size)
    core.wake()
    assert answer(core) == before


def test_a_new_version_must_be_quantized_alike(theirs: Any, folder: Path, tmp_path: Path):
    core = core_of(folder)
    before = answer(core)
    checkpoint("llama2", tmp_path / "next", gptq, GPTQ)
    change(tmp_path / "next", lambda stored: [stored[n].neg_() for n in stored if n.endswith("scales")])
    core.update_weights(tmp_path / "next", 1)
    after = answer(core)
    assert after == answer(core_of(tmp_path / "next")) != before
    reference("llama2").save_pretrained(tmp_path / "plain")
    for verb in (core.check_weights, core.update_weights):
        with pytest.raises(ModelError, match=r"is not quantized, but the served weights are quantized"):
            verb(tmp_path / "plain", 2)
    assert answer(core) == after


def test_adapters_over_quantized_weights(theirs: Any, folder: Path, tmp_path: Path):
    """As over the dequantized ones: hung on the model, and one of several in an engine."""
    theirs.save_pretrained(tmp_path / "wide")
    wide, model = load(tmp_path / "wide"), load(folder)
    write_lora(wide, tmp_path / "adapters" / "a")
    load_adapter(model, tmp_path / "adapters" / "a")
    load_adapter(wide, tmp_path / "adapters" / "a")
    tokens, attend = torch.tensor(PROMPT), Packed([0, len(PROMPT)])
    with torch.no_grad():
        ours, expected = (one(tokens, attend.positions, attend) for one in (model, wide))
    assert (ours - expected).abs().max() <= 2e-3 * expected.abs().max()
    config = CONFIG.model_copy(update={"adapters_dir": str(tmp_path / "adapters")})
    served, plain = EngineCore(load(folder), config), EngineCore(load(tmp_path / "wide"), config)
    assert answer(served, "a") == answer(plain, "a") != answer(served)
    with pytest.raises(ModelError, match="cannot be merged into quantized weights"):
        merge(model)


def test_a_learner_trains_an_adapter_and_nothing_else(folder: Path):
    model = load(folder)
    with pytest.raises(ModelError, match=r"quantized \(gptq\), and cannot be trained"):
        Learner(model, OptimConfig())
    attach_lora(model, LoraSpec(r=4, targets=("q_proj", "down_proj")))
    learner = Learner(model, OptimConfig(lr=0.01))
    held = {name: tensor.clone() for name, tensor in model.layers[0].mlp.down.quantized.tensors.items()}
    attend, tokens = Packed([0, len(PROMPT)]), torch.tensor(PROMPT)
    losses = []
    for _ in range(4):
        loss = -model(tokens, attend.positions, attend).log_softmax(-1)[:, 11].mean()
        loss.backward()
        learner.optim_step()
        losses.append(loss.item())
    assert losses[-1] < losses[0]
    assert all(".adapter." in name for name, p in model.named_parameters() if p.requires_grad)
    assert len(trainable(model)) == 12
    assert all(torch.equal(held[name], t) for name, t in model.layers[0].mlp.down.quantized.tensors.items())


def test_quantized_weights_are_not_written_again(folder: Path, tmp_path: Path):
    with pytest.raises(ModelError, match="neither written nor pushed"):
        save(load(folder), tmp_path / "again")
    assert not (tmp_path / "again").exists()
