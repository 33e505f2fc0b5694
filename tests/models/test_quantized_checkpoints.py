"""Quantized checkpoints of other writers load, compute what their numbers stand for, and take as little memory."""

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as hf
from transformers.integrations.mxfp4 import convert_moe_packed_tensors

from rondo.base.errors import ModelError
from rondo.models import Decoder, Packed, load
from rondo.models.quantized.parts import QuantizedLinear
from rondo.ops.dispatch import use_reference
from support.families import CONFIGS, VOCAB, reference
from support.quantized import (
    AWQ,
    GPTQ,
    GROUP,
    INT8,
    INT8_TOKENS,
    awq,
    change,
    checkpoint,
    compressed,
    configure,
    fp8,
    fp8_blocks,
    gptq,
    int8,
    packed,
)

BLOCKS = {"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [GROUP, GROUP]}
FP8 = {"num_bits": 8, "type": "float", "symmetric": True, "strategy": "channel"}
INT4 = {"num_bits": 4, "type": "int", "symmetric": True, "strategy": "group", "group_size": GROUP}

CASES: dict[str, tuple[Any, dict[str, Any]]] = {
    "gptq": (gptq, GPTQ),
    "gptq asymmetric": (partial(gptq, symmetric=False), GPTQ | {"sym": False}),
    "gptq v2": (
        partial(gptq, symmetric=False, v2=True),
        GPTQ | {"sym": False, "checkpoint_format": "gptq_v2"},
    ),
    "gptq act-order": (partial(gptq, ordered=True, symmetric=False), GPTQ | {"desc_act": True, "sym": False}),
    "awq": (awq, AWQ),
    "packed": (packed, compressed("pack-quantized", INT4)),
    "packed asymmetric": (
        partial(packed, symmetric=False),
        compressed("pack-quantized", INT4 | {"symmetric": False}),
    ),
    "packed int8": (partial(packed, bits=8), compressed("pack-quantized", INT4 | {"num_bits": 8})),
    "int8": (int8, compressed("int-quantized", INT8)),
    "fp8": (fp8, compressed("float-quantized", FP8, {"num_bits": 8, "type": "float", "dynamic": True})),
    "fp8 one scale": (
        partial(fp8, per_row=False),
        compressed("naive-quantized", FP8 | {"strategy": "tensor"}),
    ),
    "fp8 one scale, own method": (partial(fp8, per_row=False), {"quant_method": "fp8"}),
    "fp8 in blocks": (fp8_blocks, BLOCKS),
}


def tokens_of(length: int = 40) -> torch.Tensor:
    return torch.randint(3, VOCAB, (length,), generator=torch.Generator().manual_seed(length))


@torch.no_grad()
def logits_of(model: Decoder, tokens: torch.Tensor) -> torch.Tensor:
    attend = Packed([0, len(tokens)])
    return model(tokens, attend.positions, attend)


def assert_same_logits(ours: Decoder, theirs: Any) -> None:
    """The compiled products round activations to 16 bits; the reference rounds nothing."""
    tokens = tokens_of()
    with torch.no_grad():
        expected = theirs(tokens[None], use_cache=False).logits[0]
    largest = expected.abs().max()
    assert (logits_of(ours, tokens) - expected).abs().max() <= 2e-3 * largest
    with use_reference():
        assert (logits_of(ours, tokens) - expected).abs().max() <= 2e-4 * largest


@pytest.mark.parametrize("case", CASES)
def test_logits_are_those_of_the_dequantized_model(case: str, tmp_path: Path):
    writer, settings = CASES[case]
    theirs = checkpoint("llama-biases", tmp_path, writer, settings)
    ours = load(tmp_path)
    assert isinstance(ours.layers[0].attention.q, QuantizedLinear)
    assert_same_logits(ours, theirs)


@pytest.mark.parametrize(
    ("family", "case"),
    [
        ("phi3", "gptq act-order"),
        ("phi3", "fp8 one scale"),
        ("phi3", "fp8 in blocks"),
        ("qwen3", "awq"),
        ("gemma2", "packed"),
        ("mixtral", "gptq asymmetric"),
        ("mixtral", "gptq act-order"),
        ("deepseek-v3", "fp8 in blocks"),
        ("deepseek-v3", "int8"),
    ],
)
def test_fused_and_renamed_modules_and_experts(family: str, case: str, tmp_path: Path):
    writer, settings = CASES[case]
    theirs = checkpoint(family, tmp_path, writer, settings)
    assert_same_logits(load(tmp_path), theirs)


def test_qwen_experts(tmp_path: Path):
    """Of 40 columns, which only groups of 8 divide."""
    theirs = checkpoint("qwen3-moe", tmp_path, partial(gptq, group=8), GPTQ | {"group_size": 8})
    assert_same_logits(load(tmp_path), theirs)


@pytest.mark.parametrize("case", ["packed", "packed asymmetric"])
def test_transformers_makes_the_same_of_compressed_tensors(case: str, tmp_path: Path):
    """Through the library's own decompression."""
    writer, settings = CASES[case]
    checkpoint("qwen3", tmp_path, writer, settings)
    theirs = hf.AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32)
    assert_same_logits(load(tmp_path), theirs)


ODD = {"num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 12, "intermediate_size": 90}
"""Of k 12 rows, of down 90 columns."""


@pytest.mark.parametrize(
    ("writer", "changes", "ignored"),
    [
        (partial(packed, group=8), {"group_size": 8}, (".mlp.",)),
        (partial(packed, group=8, symmetric=False), {"group_size": 8, "symmetric": False}, (".mlp.",)),
        (partial(packed, group=2, bits=8), {"group_size": 2, "num_bits": 8}, ()),
    ],
    ids=["rows of 4 bits", "rows of zeros", "columns of 8 bits"],
)
def test_an_int32_that_is_not_full(
    writer: Any,
    changes: dict[str, Any],
    ignored: tuple[str, ...],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
):
    """compressed-tensors fills up the last one; rows lie together in zeros alone."""
    config = CONFIGS["llama2"]().to_dict() | ODD
    monkeypatch.setitem(CONFIGS, "odd", lambda: hf.LlamaConfig(**config))
    settings = compressed("pack-quantized", INT4 | changes)
    settings["ignore"] += [f"re:.*{part}.*" for part in ignored]
    theirs = checkpoint("odd", tmp_path, writer, settings, ignored)
    ours = load(tmp_path)
    assert_same_logits(ours, theirs)
    assert_same_logits(ours, hf.AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32))


FP8_TOKENS = INT8_TOKENS | {"type": "float"}


@pytest.mark.parametrize(
    ("writer", "settings", "noise"),
    [
        (int8, compressed("int-quantized", INT8, INT8_TOKENS), 0.06),
        (fp8, compressed("float-quantized", FP8, FP8_TOKENS), 0.15),
    ],
    ids=["int8", "fp8"],
)
def test_rounded_activations_beside_transformers(writer: Any, settings: Any, noise: float, tmp_path: Path):
    """Of int8 it takes a row's largest number to 127.5, which we take to 127; of fp8 we round none. So two roundings,
    each of them a few hundredths of what it rounds, part the two: their root mean square is compared."""
    checkpoint("qwen3", tmp_path, writer, settings)
    theirs = hf.AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32)
    ours, tokens = load(tmp_path), tokens_of()
    assert (ours.layers[0].attention.q.quantized.activations == "int8") == (writer is int8)
    with torch.no_grad():
        expected = theirs(tokens[None]).logits[0]
    assert (logits_of(ours, tokens) - expected).square().mean().sqrt() <= noise * expected.std()


def test_gpt_oss_as_it_was_released(tmp_path: Path):
    """Blocks of four-bit floats, beside transformers' own way of widening them."""
    theirs = reference("gpt-oss")
    theirs.save_pretrained(tmp_path)
    state = theirs.state_dict()

    def quantize(stored: dict[str, torch.Tensor]) -> None:
        for name in [name for name in stored if name.endswith(("gate_up_proj", "down_proj"))]:
            experts, columns, rows = stored.pop(name).shape
            blocks = torch.randint(0, 256, (experts, rows, columns // 32, 16), dtype=torch.uint8)
            scales = torch.randint(121, 125, (experts, rows, columns // 32), dtype=torch.uint8)
            stored |= {f"{name}_blocks": blocks, f"{name}_scales": scales}
            state[name].copy_(convert_moe_packed_tensors(blocks, scales, dtype=torch.float32))

    change(tmp_path, quantize)
    kept = ["model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens", "lm_head"]
    configure(tmp_path, quantization_config={"quant_method": "mxfp4", "modules_to_not_convert": kept})
    ours = load(tmp_path)
    assert ours.layers[0].mlp.experts.gate.quantized.kind == "mxfp4"
    assert_same_logits(ours, theirs)


@pytest.mark.parametrize(
    ("case", "changes"),
    [
        ("awq", {"modules_to_not_convert": ["mlp", "lm_head"]}),
        (
            "gptq",
            {
                "modules_in_block_to_quantize": [
                    ["self_attn.q_proj", "self_attn.k_proj"],
                    ["self_attn.v_proj"],
                    ["self_attn.o_proj"],
                ]
            },
        ),
        ("gptq", {"dynamic": {r"-:.*\.mlp\..*": {}}}),
        ("fp8 in blocks", {"modules_to_not_convert": ["mlp"]}),
        ("int8", {"ignore": ["lm_head", r"re:.*\.mlp\..*"]}),
        (
            "int8",
            {
                "ignore": [
                    "lm_head",
                    *(f"model.layers.{i}.mlp.{n}_proj" for i in range(3) for n in ("gate", "up", "down")),
                ]
            },
        ),
    ],
)
def test_modules_that_are_left_alone(case: str, changes: dict[str, Any], tmp_path: Path):
    writer, settings = CASES[case]
    theirs = checkpoint("llama2", tmp_path, writer, settings | changes, ignored=(".mlp.",))
    ours = load(tmp_path)
    assert isinstance(ours.layers[0].attention.q, QuantizedLinear)
    assert not isinstance(ours.layers[0].mlp.up, QuantizedLinear)
    assert_same_logits(ours, theirs)


def test_biases_of_zeros_that_a_model_does_not_have(tmp_path: Path):
    """AutoGPTQ writes one for every module."""
    theirs = checkpoint("llama2", tmp_path, *CASES["gptq"])
    name = "model.layers.0.self_attn.q_proj.bias"
    change(tmp_path, lambda stored: stored.update({name: torch.zeros(64)}))
    assert_same_logits(load(tmp_path), theirs)
    change(tmp_path, lambda stored: stored.update({name: torch.ones(64)}))
    with pytest.raises(ModelError, match=f"1 unexpected: {name}"):
        load(tmp_path)


def quantized_bytes(model: Decoder) -> tuple[int, int]:
    """What the quantized weights take, and what they would in bf16."""
    parts = [part.quantized for part in model.modules() if isinstance(part, QuantizedLinear)]
    return sum(part.nbytes for part in parts), sum(2 * part.shape[0] * part.shape[1] for part in parts)


@pytest.mark.parametrize(
    ("case", "share"), [("gptq", 0.25), ("awq", 0.25), ("packed", 0.25), ("int8", 0.5), ("fp8", 0.5)]
)
def test_memory_halves_or_quarters(case: str, share: float, tmp_path: Path):
    """Beside the numbers are an fp32 scale, and with AWQ a byte of zeros, for 32 columns or for a row of 64."""
    checkpoint("llama2", tmp_path, *CASES[case])
    taken, plain = quantized_bytes(load(tmp_path))
    assert share * plain < taken <= (share + 5 / 64) * plain


@pytest.mark.parametrize("case", ["packed", "int8", "fp8"])
def test_numbers_laid_out_as_the_form_is_are_mapped(case: str, tmp_path: Path):
    """Whoever changes the file's pages changes the model."""
    checkpoint("llama2", tmp_path, *CASES[case])
    model, file = load(tmp_path), tmp_path / "model.safetensors"
    weight = model.layers[0].attention.q.quantized
    before = weight.data.clone().view(torch.uint8)
    whole = file.read_bytes()
    where = whole.index(before.numpy().tobytes())
    with file.open("r+b") as stream:
        stream.seek(where)
        stream.write(bytes([whole[where] ^ 255]))
    assert not torch.equal(weight.data.view(torch.uint8), before)


def test_the_type_of_activations_is_the_configs(tmp_path: Path):
    checkpoint("llama2", tmp_path, *CASES["gptq"])
    assert load(tmp_path).dtype == torch.float32
    configure(tmp_path, dtype="bfloat16")
    model = load(tmp_path)
    assert model.dtype == torch.bfloat16
    assert model.layers[0].attention.q.quantized.scales.dtype == torch.float32
    assert logits_of(model, tokens_of()).dtype == torch.bfloat16
    assert load(tmp_path, torch.float32).dtype == torch.float32
