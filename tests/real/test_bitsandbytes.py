"""QLoRA beside bitsandbytes and PEFT: the same quantized weights, loss and gradients, and files in both directions."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from rondo import models
from rondo.cli.main import main
from rondo.data.batching.packing import Document, pack
from rondo.models import Decoder, Packed
from rondo.models.adapters import LoraSpec, attach_lora, load_lora, save_adapter, trainable
from rondo.models.quantized.quantize.making import load_nf4
from rondo.train.config import OptimConfig
from rondo.train.learner.learner import Learner
from rondo.train.losses.sums import cross_entropy
from support.peers import run_peer
from support.tiny import tiny_model, tiny_tokenizer

pytestmark = pytest.mark.real

WIDE = {"hidden_size": 128, "intermediate_size": 256, "head_dim": 32, "tie_word_embeddings": False}
TOKENS = torch.randint(3, 300, (48,), generator=torch.Generator().manual_seed(3)).tolist()
CPU = torch.device("cpu")


def logits(model: Decoder) -> torch.Tensor:
    attend = Packed([0, len(TOKENS)])
    with torch.no_grad():
        return model(torch.tensor(TOKENS), attend.positions, attend)


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """A base, its form in 4 bits and an adapter, and the peer's answer."""
    folder = tmp_path_factory.mktemp("nf4")
    models.save(tiny_model(**WIDE), folder / "base")
    tiny_tokenizer().save(folder / "base")
    made = ["model", "quantize", str(folder / "base"), "--method", "nf4", "--out", str(folder / "ours")]
    assert main(made) == 0
    model = load_nf4(folder / "base", torch.float32, CPU)
    attach_lora(model, LoraSpec(4, 8))
    with torch.no_grad():
        for number, parameter in enumerate(trainable(model)):
            parameter.normal_(0.0, 0.05, generator=torch.Generator().manual_seed(number))
    save_adapter(model, folder / "adapter")
    (folder / "out").mkdir()
    names = ("base", "adapter", "ours", "out")
    asked = json.dumps({name: str(folder / name) for name in names} | {"tokens": TOKENS})
    said = run_peer("bitsandbytes", Path(__file__).with_name("_bitsandbytes.py"), asked=asked)
    return folder, json.loads(said.splitlines()[-1])


def test_the_quantized_model_is_theirs(found: tuple[Path, dict[str, Any]]):
    """Up to a scale's code at a tie, which bitsandbytes on a CPU breaks by a table."""
    folder, said = found
    ours = logits(load_nf4(folder / "base", torch.float32, CPU))
    theirs = torch.tensor(said["logits"])
    assert (ours - theirs).abs().max() <= 2e-3 * theirs.abs().max()


def test_files_in_both_directions(found: tuple[Path, dict[str, Any]]):
    folder, said = found
    read, theirs = logits(models.load(folder / "out/model")), torch.tensor(said["logits"])
    assert (read - theirs).abs().max() <= 1e-5 * theirs.abs().max()
    ours, reads = logits(models.load(folder / "ours")), torch.tensor(said["logits of ours"])
    assert (ours - reads).abs().max() <= 1e-5 * reads.abs().max()


def test_loss_and_gradients_of_the_adapter_are_pefts(found: tuple[Path, dict[str, Any]]):
    """Over the weights in their file."""
    folder, said = found
    model = models.load(folder / "out/model")
    load_lora(model, folder / "adapter", train=True)
    learner = Learner(model, OptimConfig())
    rows = pack([Document(TOKENS, [1.0] * len(TOKENS))], 64)
    metrics = learner.forward_backward(rows, cross_entropy)
    assert metrics["loss"] == pytest.approx(said["loss"], rel=1e-5)
    theirs = load_file(folder / "out/gradients.safetensors")
    names = {
        "q": "self_attn.q_proj",
        "down": "mlp.down_proj",
        "out": "self_attn.o_proj",
        "gate": "mlp.gate_proj",
    }
    for path, part in model.__dict__["adapter"].parts.items():
        _, layer, _, leaf = path.split(".")
        if leaf not in names:
            continue
        for matrix, parameter in (("A", part.a), ("B", part.b)):
            name = f"base_model.model.model.layers.{layer}.{names[leaf]}.lora_{matrix}.default.weight"
            expected = theirs[name]
            assert (parameter.grad - expected).abs().max() <= 1e-4 * expected.abs().max(), name
