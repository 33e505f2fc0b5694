"""NF4 weights: the codes and files of bitsandbytes, and products with what they represent."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from rondo import models
from rondo.base.errors import ModelError
from rondo.cli.main import main
from rondo.client.types import SamplingParams
from rondo.engine.entrypoints.llm import LLM
from rondo.models.adapters import LoraSpec, attach_lora, load_lora, save_adapter, trainable
from rondo.models.quantized import writing
from rondo.models.quantized.parts import QuantizedLinear, quantized_weights
from rondo.models.quantized.quantize.making import load_nf4
from rondo.models.quantized.quantize.rounding import nf4
from rondo.models.store import summary
from rondo.ops import quantized_linear
from rondo.ops.gemm import nf4 as codes
from support.home import own_home
from support.tiny import tiny_model, tiny_tokenizer

WIDE = {"hidden_size": 64, "intermediate_size": 128, "head_dim": 16}
STATE = "quant_state.bitsandbytes__nf4"


def weight(rows: int = 40, columns: int = 128) -> torch.Tensor:
    return torch.randn(rows, columns, generator=torch.Generator().manual_seed(rows)) * 0.05


def by_the_paper(whole: torch.Tensor) -> torch.Tensor:
    """The weight after quantization with scales in fp32, element by element (QLoRA, appendix E)."""
    found = torch.empty_like(whole)
    for row, numbers in enumerate(whole):
        for start in range(0, len(numbers), 64):
            block = numbers[start : start + 64]
            scale = block.abs().max()
            nearest = [min(codes.NF4, key=lambda code: abs(code - x)) for x in (block / scale).tolist()]
            found[row, start : start + 64] = torch.tensor(nearest) * scale
    return found


def test_values_are_the_papers():
    whole = weight(6)
    quantized = nf4(whole)
    torch.testing.assert_close(quantized.dequantized(), by_the_paper(whole), rtol=0.02, atol=1e-4)
    assert quantized.nbytes == 6 * 64 + 6 * 2 + 2 * 4


def test_a_row_of_zeros_stays_zero():
    assert not nf4(torch.zeros(4, 64)).dequantized().any()


def test_scales_of_scales_lose_little():
    scales = torch.rand(30, 20, generator=torch.Generator().manual_seed(0)) + 0.5
    found = codes.plain_scales(*codes.nested(scales))
    assert (found - scales).abs().max() < 0.01


def test_product_and_gradient_are_those_of_the_dequantized_weight():
    quantized, x = nf4(weight()), torch.randn(7, 128, requires_grad=True)
    ours = quantized_linear(x, quantized)
    (gradient,) = torch.autograd.grad(ours.square().sum(), x)
    theirs = x @ quantized.dequantized().T
    assert torch.equal(ours, theirs)
    torch.testing.assert_close(gradient, torch.autograd.grad(theirs.square().sum(), x)[0])


def test_rows_of_a_weight():
    quantized = nf4(weight())
    part = quantized.rows(slice(3, 11))
    assert torch.equal(part.dequantized(), quantized.dequantized()[3:11])


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("RONDO_HOME", str(own_home(tmp_path / "home")))
    models.save(tiny_model(**WIDE), tmp_path / "base")
    tiny_tokenizer().save(tmp_path / "base")
    assert (
        main(["model", "quantize", str(tmp_path / "base"), "--method", "nf4", "--out", str(tmp_path / "nf4")])
        == 0
    )
    return tmp_path


def test_a_written_model_is_read_as_bitsandbytes_writes_it(folder: Path):
    config = json.loads((folder / "nf4/config.json").read_text())["quantization_config"]
    assert config["quant_method"] == "bitsandbytes"
    assert config["bnb_4bit_use_double_quant"]
    tensors = load_file(folder / "nf4/model.safetensors")
    name = "model.layers.0.self_attn.q_proj.weight"
    assert {key.removeprefix(name) for key in tensors if key.startswith(name)} == {
        *("", ".absmax", ".quant_map", ".nested_absmax", ".nested_quant_map", f".{STATE}")
    }
    assert json.loads(bytes(tensors[f"{name}.{STATE}"].tolist()))["shape"] == [64, 64]
    read, made = models.load(folder / "nf4"), load_nf4(folder / "base", torch.float32, torch.device("cpu"))
    for path, own in quantized_weights(read).items():
        assert torch.equal(own.dequantized(), quantized_weights(made)[path].dequantized())
    assert summary(folder / "nf4").parameters == summary(folder / "base").parameters


def test_single_quantized_scales_are_read(folder: Path):
    """`bnb_4bit_use_double_quant=False`, with scales in fp32."""
    tensors, config = load_file(folder / "nf4/model.safetensors"), folder / "nf4/config.json"
    told = json.loads(config.read_text())
    told["quantization_config"]["bnb_4bit_use_double_quant"] = False
    config.write_text(json.dumps(told))
    whole = quantized_weights(load_nf4(folder / "base", torch.float32, torch.device("cpu")))
    for path, own in whole.items():
        _, layer, part, leaf, _ = path.split(".")
        section = "self_attn" if part == "attention" else "mlp"
        name = f"model.layers.{layer}.{section}.{leaf}_proj.weight"
        tensors[f"{name}.absmax"] = own.with_plain_scales().scales.flatten()
        del tensors[f"{name}.nested_absmax"], tensors[f"{name}.nested_quant_map"]
    save_file(tensors, folder / "nf4/model.safetensors", {"format": "pt"})
    for path, own in quantized_weights(models.load(folder / "nf4")).items():
        assert own.nested is None
        assert torch.equal(own.dequantized(), whole[path].dequantized())


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"bnb_4bit_quant_type": "fp4"}, "bnb_4bit_quant_type is 'fp4'"),
        ({"load_in_4bit": False, "load_in_8bit": True}, "load_in_4bit is False"),
        ({"bnb_4bit_quant_storage": "bfloat16"}, "bnb_4bit_quant_storage is 'bfloat16'"),
    ],
)
def test_other_settings_are_errors(change: dict[str, Any], said: str, folder: Path):
    config = folder / "nf4/config.json"
    told = json.loads(config.read_text())
    told["quantization_config"] |= change
    config.write_text(json.dumps(told))
    with pytest.raises(ModelError, match=said):
        models.load(folder / "nf4")


@pytest.mark.parametrize(
    ("state", "said"),
    [
        (b"{}", "quant_state is no JSON object"),
        (b'{"blocksize": 128, "nested_offset": 0}', "blocksize is 128"),
    ],
)
def test_a_damaged_state_is_an_error(state: bytes, said: str, folder: Path):
    tensors = load_file(folder / "nf4/model.safetensors")
    tensors[f"model.layers.0.mlp.up_proj.weight.{STATE}"] = torch.tensor(list(state), dtype=torch.uint8)
    save_file(tensors, folder / "nf4/model.safetensors", {"format": "pt"})
    with pytest.raises(ModelError, match=said):
        models.load(folder / "nf4")


def test_an_adapter_is_served_over_the_quantized_base_with_the_learners_logprobs(folder: Path):
    """Trained over a base that was quantized in memory, served over the same base from files."""
    learner = load_nf4(folder / "base", torch.float32, torch.device("cpu"))
    attach_lora(learner, LoraSpec(4, 8))
    with torch.no_grad():
        for parameter in trainable(learner):
            parameter.normal_(0.0, 0.1, generator=torch.Generator().manual_seed(5))
    save_adapter(learner, folder / "adapters/tuned")
    served = models.load(folder / "nf4")
    assert isinstance(served.layers[0].attention.q, QuantizedLinear)
    load_lora(served, folder / "adapters/tuned")
    prompt = [5, 9, 17, 40, 8]
    greedy = SamplingParams(max_tokens=8, temperature=0.0, ignore_eos=True, logprobs=0, detokenize=False)
    (answer,) = LLM(served).generate([prompt], greedy)
    sample = answer.outputs[0]
    tokens = torch.tensor(prompt + sample.token_ids)
    attend = models.Packed([0, len(tokens)])
    with torch.no_grad():
        scores = learner(tokens, attend.positions, attend)[len(prompt) - 1 : -1].log_softmax(-1)
    assert scores.argmax(-1).tolist() == sample.token_ids
    chosen = scores.gather(1, tokens[len(prompt) :, None])[:, 0]
    torch.testing.assert_close(torch.tensor(sample.logprobs), chosen, atol=1e-4, rtol=0)


def test_skipped_modules_stay_whole(folder: Path):
    """`llm_int8_skip_modules` of a checkpoint by bitsandbytes: names of modules, or of their ends."""
    whole = load_file(folder / "base/model.safetensors")
    tensors, config = load_file(folder / "nf4/model.safetensors"), folder / "nf4/config.json"
    skipped = [
        name for name in whole if "down_proj" in name or name.startswith("model.layers.1.self_attn.q_")
    ]
    for name in skipped:
        tensors = {key: value for key, value in tensors.items() if not key.startswith(name)}
        tensors[name] = whole[name]
    save_file(tensors, folder / "nf4/model.safetensors", {"format": "pt"})
    told = json.loads(config.read_text())
    told["quantization_config"]["llm_int8_skip_modules"] = [
        "lm_head",
        "down_proj",
        "model.layers.1.self_attn.q_proj",
    ]
    config.write_text(json.dumps(told))
    model = models.load(folder / "nf4")
    kept = {name.removesuffix(".weight") for name in quantized_weights(model)}
    assert not [name for name in kept if name.endswith("down")]
    assert len(kept) == 2 * 6 - 1
    assert torch.equal(model.layers[1].attention.q.weight, whole["model.layers.1.self_attn.q_proj.weight"])


def test_scales_of_scales_are_computed_once_a_type(folder: Path, monkeypatch: pytest.MonkeyPatch):
    """Tensors are written by type, so the fp32 ones of a weight and its 8-bit ones are not written together."""
    written, computed = [], []
    whole, nested = writing._whole, codes.nested

    def counted(*given: Any) -> Any:
        written.append(1)
        return whole(*given).with_plain_scales()

    monkeypatch.setattr(writing, "_whole", counted)
    monkeypatch.setattr(codes, "nested", lambda scales: (computed.append(len(written)), nested(scales))[1])
    command = ["model", "quantize", str(folder / "base"), "--method", "nf4", "--out", str(folder / "again")]
    assert main(command) == 0
    weights = len(quantized_weights(models.load(folder / "again")))
    assert len([count for count in computed if count]) == len(written) == 2 * weights
