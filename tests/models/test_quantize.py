"""Quantizing a model: what is written loads here and in transformers, and computes what the model did but for noise."""

import json
from pathlib import Path

import pytest
import torch
import transformers as hf
from safetensors.torch import load_file
from torch import Tensor

from rondo.base.errors import Conflict, InvalidRequest, ModelError
from rondo.models import Decoder, Packed, load, save
from rondo.models.quantized import formats
from rondo.models.quantized.folder import quantize_folder
from rondo.models.quantized.parts import QuantizedLinear
from rondo.models.quantized.quantize import awq, gptq, rounding
from rondo.models.quantized.quantize.folding import folds
from rondo.models.quantized.quantize.making import QuantizationRecipe, planned, quantize
from rondo.models.quantized.quantize.methods import CALIBRATED, METHODS, Method
from rondo.models.quantized.quantize.observing import matrices
from rondo.models.quantized.writing import outgoing, write_into
from rondo.ops.dispatch import use_reference
from support.families import VOCAB, reference
from support.tiny import tiny_model, tiny_tokenizer

SHAPE = {"hidden_size": 64, "intermediate_size": 96, "head_dim": 16}
HERE = [method for method in METHODS if method != "nf4"]
"""nf4 has groups of 64, which these models are too small for: `test_nf4.py`."""
NOISE = {"awq": 0.5, "gptq": 0.5, "int8": 0.05, "fp8": 0.15}
"""The most that logits may change, as a share of how far they spread."""
MOST_NOISE = 0.8
"""Where a token may go to another expert."""
AWQ_PLACES = (0, 2, 4, 6, 1, 3, 5, 7)


def recipe_of(method: Method, group_size: int) -> QuantizationRecipe:
    return QuantizationRecipe(method, group_size if method in CALIBRATED else None)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    save(tiny_model(**SHAPE), tmp_path / "tiny")
    tiny_tokenizer().save(tmp_path / "tiny")
    return tmp_path / "tiny"


@torch.no_grad()
def logits_of(model: Decoder, length: int = 40) -> Tensor:
    tokens = torch.randint(3, VOCAB, (length,), generator=torch.Generator().manual_seed(length))
    attend = Packed([0, length])
    return model(tokens, attend.positions, attend)


def apart(ours: Tensor, theirs: Tensor) -> float:
    return float((ours - theirs).square().mean().sqrt() / theirs.std())


@pytest.mark.parametrize("method", HERE)
def test_what_is_written(method: Method, folder: Path, tmp_path: Path):
    found = quantize_folder(folder, tmp_path / "out", recipe_of(method, 32))
    model = load(tmp_path / "out")
    assert isinstance(model.layers[0].mlp.down, QuantizedLinear)
    assert apart(logits_of(model), logits_of(load(folder))) < NOISE[method]
    assert found.bytes_after < 0.6 * found.bytes_before
    assert found.held_out_tokens > 64
    assert found.perplexity_after == pytest.approx(found.perplexity_before, rel=0.1)
    names = {file.name for file in (tmp_path / "out").iterdir()}
    assert {file.name for file in folder.iterdir()} <= names
    again = quantize_folder(folder, tmp_path / "again", recipe_of(method, 32))
    assert again.perplexity_after == found.perplexity_after
    one, other = (tmp_path / name / "model.safetensors" for name in ("out", "again"))
    assert one.read_bytes() == other.read_bytes()


@pytest.mark.parametrize("method", ["int8", "fp8"])
def test_transformers_reads_it(method: Method, folder: Path, tmp_path: Path):
    """It rounds activations of both; the noise is of those."""
    quantize_folder(folder, tmp_path / "out", QuantizationRecipe(method))
    theirs = hf.AutoModelForCausalLM.from_pretrained(tmp_path / "out", dtype=torch.float32)
    tokens = torch.randint(3, VOCAB, (40,), generator=torch.Generator().manual_seed(40))
    with torch.no_grad():
        expected = theirs(tokens[None]).logits[0]
    assert apart(logits_of(load(tmp_path / "out")), expected) < NOISE[method]


def numbers(words: Tensor, axis: int, places: tuple[int, ...] = tuple(range(8))) -> Tensor:
    """Each int32's eight numbers of 4 bits along an axis: the one at bit 4 i is number `places[i]`."""
    words = words.movedim(axis, -1).long() & 0xFFFFFFFF
    found = torch.empty(*words.shape[:-1], words.shape[-1] * 8)
    for i, place in enumerate(places):
        found[..., place::8] = ((words >> (4 * i)) & 15).float()
    return found.movedim(-1, axis)


@pytest.mark.parametrize("method", ["awq", "gptq"])
def test_four_bits_lie_as_the_formats_say(method: Method, folder: Path, tmp_path: Path):
    quantize_folder(folder, tmp_path / "out", QuantizationRecipe(method, 32))
    stored = load_file(tmp_path / "out" / "model.safetensors")
    settings = json.loads((tmp_path / "out" / "config.json").read_text())["quantization_config"]
    assert (settings["quant_method"], settings["bits"], settings["group_size"]) == (method, 4, 32)
    module = "model.layers.1.mlp.down_proj"
    words, zero_words, scales = (stored[f"{module}.{end}"] for end in ("qweight", "qzeros", "scales"))
    if method == "awq":
        codes, zeros = (numbers(each, 1, AWQ_PLACES) for each in (words, zero_words))
    else:
        codes, zeros = numbers(words, 0), numbers(zero_words, 1) + 1
        assert torch.equal(stored[f"{module}.g_idx"], torch.arange(96, dtype=torch.int32) // 32)
    groups = torch.arange(96) // 32
    expected = ((codes - zeros[groups]) * scales.float()[groups]).T
    held = load(tmp_path / "out").layers[1].mlp.down.quantized
    assert torch.equal(held.dequantized(), expected)
    original = load(folder).layers[1].mlp.down.weight
    if method == "gptq":
        assert apart(expected, original.detach()) < 0.25


def uneven_inputs(columns: int = 64) -> Tensor:
    make = torch.Generator().manual_seed(1)
    mixed = torch.randn(512, columns, generator=make) @ torch.randn(columns, columns, generator=make)
    return mixed * torch.logspace(-1.5, 1.5, columns)[torch.randperm(columns, generator=make)]


def lost(weight: Tensor, rounded: Tensor, inputs: Tensor) -> float:
    return float((inputs @ (rounded - weight).T).square().mean())


def test_gptq_loses_less_than_plain_rounding():
    inputs, weight = uneven_inputs(), torch.randn(24, 64, generator=torch.Generator().manual_seed(2))
    groups = weight.unflatten(1, (-1, 32))
    grid = rounding.symmetric_grid(groups, torch.float16)
    plain = rounding.values_of(rounding.codes_of(groups, *grid), *grid).flatten(1)
    found = gptq.quantize(weight, inputs.T @ inputs / 512, 32, torch.float16).dequantized()
    assert lost(weight, found, inputs) < 0.8 * lost(weight, plain, inputs)


def test_gptq_with_inputs_that_never_come():
    inputs, weight = uneven_inputs(), torch.randn(24, 64, generator=torch.Generator().manual_seed(2))
    inputs[:, :40] = 0
    found = gptq.quantize(weight, inputs.T @ inputs / 512, 32, torch.float16).dequantized()
    assert found.isfinite().all()
    assert (found[:, :32] == 0).all()


def test_awq_loses_less_than_plain_rounding():
    inputs, weight = uneven_inputs(), torch.randn(24, 64, generator=torch.Generator().manual_seed(2))
    products = inputs.T @ inputs / 512
    plain = awq.quantize(weight, products, 32, torch.float16, cut=False).dequantized()
    factors = awq.factors([(weight, products)], inputs.abs().mean(0), 32, torch.float16)
    scaled = products / (factors[:, None] * factors)
    found = awq.quantize(weight * factors, scaled, 32, torch.float16).dequantized() / factors
    assert lost(weight, found, inputs) < 0.8 * lost(weight, plain, inputs)


FAMILIES = (
    "llama2",
    "llama-biases",
    "gemma2",
    "olmo2",
    "phi3",
    "qwen3",
    "mixtral",
    "qwen3-moe",
    "deepseek-v3",
)


@pytest.mark.parametrize("family", FAMILIES)
@torch.no_grad()
def test_what_is_folded_changes_nothing(family: str, tmp_path: Path):
    """Columns multiplied by any factors, which are taken out of what feeds them: the same function."""
    reference(family).save_pretrained(tmp_path)
    model = load(tmp_path)
    before = logits_of(model)
    count = 0
    for index, layer in enumerate(model.layers):
        found = matrices(layer, f"layers.{index}")
        weights = {key: weight.clone() for key, weight in found.items()}
        for fold in folds(layer, f"layers.{index}", weights):
            factors = torch.rand(weights[fold.fed[0]].shape[1]) + 0.5
            for key in fold.fed:
                weights[key] = weights[key] * factors
            fold.shrink(factors)
            count += 1
        for key, weight in found.items():
            weight.copy_(weights[key])
    assert count >= 1
    assert apart(logits_of(model), before) < 1e-4


def token_rows() -> list[list[int]]:
    make = torch.Generator().manual_seed(0)
    return torch.randint(3, VOCAB, (4, 64), generator=make).tolist()


@pytest.mark.parametrize("method", CALIBRATED)
@pytest.mark.parametrize("spoilt", [torch.nan, torch.inf, 1e30])
def test_inputs_that_are_not_finite(method: Method, spoilt: float):
    """Also where they become so only when they are squared."""
    model = tiny_model(**SHAPE)
    with torch.no_grad():
        model.layers[1].attention_norm.weight.fill_(spoilt)
    with pytest.raises(
        ModelError, match=r"layers.1.attention.q.weight cannot be quantized: its calibration inputs"
    ):
        quantize(model, QuantizationRecipe(method, 32), token_rows(), lambda count: None)


@pytest.mark.parametrize("method", HERE)
@pytest.mark.parametrize("spoilt", [torch.nan, -torch.inf])
def test_a_weight_that_is_not_finite(method: Method, spoilt: float):
    """No other method is advised: none would do."""
    model = tiny_model(**SHAPE)
    with torch.no_grad():
        model.layers[1].attention.k.weight[3, 5] = spoilt
    with pytest.raises(
        ModelError, match=r"layers.1.attention.k.weight cannot be quantized: it has non-finite values$"
    ):
        quantize(model, recipe_of(method, 32), token_rows(), lambda count: None)


def test_damping_has_an_end():
    indefinite = torch.zeros(64, 64)
    indefinite[0, 1] = indefinite[1, 0] = 1e30
    with pytest.raises(ValueError, match="cannot be inverted"):
        gptq.quantize(torch.ones(8, 64), indefinite, 32, torch.float16)


def test_awq_where_no_loss_can_be_told():
    """It takes the whole range, and no memory that nobody wrote."""
    weight = torch.randn(8, 64, generator=torch.Generator().manual_seed(2))
    found = awq.quantize(weight, torch.full((64, 64), torch.nan), 32, torch.float16)
    plain = awq.quantize(weight, torch.eye(64), 32, torch.float16, cut=False)
    assert torch.equal(found.dequantized(), plain.dequantized())


def test_rows_of_small_weights_keep_their_share():
    """Their scales are less than the smallest normal number of fp16."""
    weight = torch.randn(8, 512, generator=torch.Generator().manual_seed(3))
    small = weight * 1e-3
    of, of_small = (rounding.int8(each, torch.float16).dequantized() for each in (weight, small))
    assert apart(of_small, small) < 1.2 * apart(of, weight)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_rows_of_zeros(dtype: torch.dtype):
    for make in (rounding.int8, rounding.fp8):
        assert torch.equal(make(torch.zeros(2, 8), dtype).dequantized(), torch.zeros(2, 8))


@pytest.mark.parametrize(("method", "packed"), [("gptq", 1), ("awq", 2)])
def test_each_tensor_is_made_once(method: Method, packed: int, monkeypatch: pytest.MonkeyPatch):
    model = tiny_model(**SHAPE)
    plain, weights, _ = planned(model, QuantizationRecipe(method, 32))
    quantize(model, QuantizationRecipe(method, 32), token_rows(), lambda count: None)
    made, joined = [], formats._joined
    monkeypatch.setattr(formats, "_joined", lambda codes: made.append(codes) or joined(codes))
    for tensor in outgoing(model, plain, weights):
        tensor.make()
    assert len(made) == packed * len(weights)


@pytest.mark.parametrize("method", HERE)
@pytest.mark.parametrize("family", ["phi3", "gemma2", "mixtral", "qwen3-moe", "deepseek-v3"])
def test_every_kind_of_module(family: str, method: Method, tmp_path: Path):
    """Fused and renamed modules, experts and latents are written as others would, and read back."""
    reference(family).save_pretrained(tmp_path / "model")
    model = load(tmp_path / "model")
    plain, weights, _ = planned(model, recipe_of(method, 8))
    quantize(model, recipe_of(method, 8), token_rows(), lambda count: None)
    (tmp_path / "out").mkdir()
    write_into(tmp_path / "out", model, plain, weights, lambda count: None)
    with use_reference():
        assert apart(logits_of(load(tmp_path / "out")), logits_of(model)) < 1e-3
        assert apart(logits_of(model), logits_of(load(tmp_path / "model"))) < MOST_NOISE


def test_what_cannot_be_quantized(folder: Path, tmp_path: Path):
    with pytest.raises(InvalidRequest, match=r"--group-size 40 does not divide the 64 columns") as caught:
        quantize_folder(folder, tmp_path / "out", QuantizationRecipe("awq", 40))
    assert caught.value.param == "group_size"
    with pytest.raises(InvalidRequest, match="give more"):
        quantize_folder(folder, tmp_path / "out", QuantizationRecipe("int8"), ["short"])
    with pytest.raises(InvalidRequest, match="Choose another place"):
        quantize_folder(folder, folder, QuantizationRecipe("int8"))
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").write_text("kept")
    with pytest.raises(Conflict):
        quantize_folder(folder, tmp_path / "full", QuantizationRecipe("int8"))
    reference("gpt-oss").save_pretrained(tmp_path / "oss")
    with pytest.raises(InvalidRequest, match="gpt_oss"):
        quantize_folder(tmp_path / "oss", tmp_path / "out", QuantizationRecipe("int8"))
    assert not (tmp_path / "out").exists()


def test_without_a_tokenizer(folder: Path, tmp_path: Path):
    for file in folder.glob("tokenizer*"):
        file.unlink()
    with pytest.raises(InvalidRequest, match="has no tokenizer"):
        quantize_folder(folder, tmp_path / "out", QuantizationRecipe("gptq", 32))
    found = quantize_folder(folder, tmp_path / "out", QuantizationRecipe("fp8"))
    assert (found.perplexity_before, found.perplexity_after) == (None, None)
    load(tmp_path / "out")
