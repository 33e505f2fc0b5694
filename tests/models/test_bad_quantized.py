"""A quantized checkpoint that cannot be loaded ends in one line that names the field of config.json or the tensor."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from rondo.base.errors import ConfigError, ModelError
from rondo.engine.config import EngineConfig
from rondo.engine.entrypoints.load import load_core
from rondo.models import load, parse, save
from rondo.models.quantized import scheme
from rondo.models.quantized.reading import divide
from support.families import reference
from support.quantized import (
    AWQ,
    GPTQ,
    GROUP,
    INT8,
    INT8_TOKENS,
    Writer,
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
from support.tiny import tiny_config, tiny_model

INT4 = {"num_bits": 4, "type": "int", "strategy": "group", "group_size": GROUP}
Q = "model.layers.0.self_attn.q_proj"
K = "model.layers.0.self_attn.k_proj"


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ("int4", "quant_method is 'int4'"),
        ({"bits": 4}, "quant_method is None"),
        (
            {"quant_method": "quanto"},
            "'quanto', which is not supported; supported: awq, bitsandbytes, compressed-tensors",
        ),
        ({"quant_method": ["gptq"]}, "quant_method"),
        (GPTQ | {"bits": 3}, "quantization_config.bits is 3, which is not supported; supported: 4"),
        (GPTQ | {"bits": "4"}, "bits is '4'"),
        (GPTQ | {"group_size": 0}, "group_size is 0"),
        (GPTQ | {"group_size": "big"}, "group_size is 'big'"),
        (GPTQ | {"checkpoint_format": "marlin"}, "checkpoint_format is 'marlin'"),
        (GPTQ | {"is_marlin_format": True}, "is_marlin_format"),
        (GPTQ | {"dynamic": {"-:(": {}}}, "dynamic has"),
        (GPTQ | {"dynamic": {"+:q": {"bits": 8}}}, "bits is 8"),
        (GPTQ | {"dynamic": ["-:x"]}, "dynamic is ['-:x']"),
        (GPTQ | {"dynamic": {"+:q": 4}}, "dynamic is {'+:q': 4}"),
        (GPTQ | {"modules_in_block_to_quantize": 3}, "modules_in_block_to_quantize is 3"),
        (GPTQ | {"modules_in_block_to_quantize": [["q", 3]]}, "modules_in_block_to_quantize is not a list"),
        (AWQ | {"version": "gemv"}, "version is 'gemv'"),
        (AWQ | {"zero_point": False}, "zero_point is False"),
        (AWQ | {"modules_to_not_convert": "lm_head"}, "modules_to_not_convert"),
        ({"quant_method": "fp8", "fmt": "e5m2"}, "fmt is 'e5m2'"),
        ({"quant_method": "fp8", "weight_block_size": [128]}, "weight_block_size is"),
        ({"quant_method": "compressed-tensors"}, "config_groups is missing"),
        (compressed("nvfp4-pack-quantized", INT4), "format is 'nvfp4-pack-quantized'"),
        (compressed("pack-quantized", INT4 | {"num_bits": 3}), "3 bits of int"),
        (compressed("pack-quantized", INT4 | {"strategy": "tensor"}), "strategy is 'tensor'"),
        (compressed("pack-quantized", INT4 | {"actorder": "odd"}), "actorder is 'odd'"),
        (compressed("int-quantized", INT8 | {"symmetric": False}), "symmetric is False"),
        (compressed("int-quantized", INT8, INT8_TOKENS | {"dynamic": False}), "input_activations"),
        (
            compressed("int-quantized", INT8) | {"sparsity_config": {"format": "sparse-24-bitmask"}},
            "sparsity_config",
        ),
        (compressed("int-quantized", INT8) | {"ignore": ["re:("]}, "ignore has"),
    ],
)
def test_a_config_that_is_not_understood(settings: Any, words: str):
    with pytest.raises(ModelError) as caught:
        parse(tiny_config(quantization_config=settings))
    assert words in caught.value.message
    assert str(caught.value.param).startswith(scheme.FIELD)


def without(name: str) -> Callable[[Path], None]:
    return lambda folder: change(folder, lambda stored: stored.pop(name))


def narrowed(name: str) -> Callable[[Path], None]:
    return lambda folder: change(folder, lambda stored: stored.update({name: stored[name][:1].clone()}))


def typed(name: str, dtype: torch.dtype) -> Callable[[Path], None]:
    return lambda folder: change(folder, lambda stored: stored.update({name: stored[name].to(dtype)}))


def unquantized(folder: Path) -> None:
    def edit(stored: dict[str, torch.Tensor]) -> None:
        for end in ("qweight", "qzeros", "scales", "g_idx"):
            del stored[f"{Q}.{end}"]
        stored[f"{Q}.weight"] = torch.zeros(64, 64)

    change(folder, edit)


def mixed_groups(folder: Path) -> None:
    change(folder, lambda stored: stored.update({f"{Q}.g_idx": torch.zeros(64, dtype=torch.int32)}))


def far_group(folder: Path) -> None:
    """Counting up to it would take 16 GiB."""
    groups = torch.arange(64, dtype=torch.int32) // GROUP
    groups[-1] = 2**31 - 1
    change(folder, lambda stored: stored.update({f"{Q}.g_idx": groups}))


def no_order(folder: Path) -> None:
    configure(folder, quantization_config=GPTQ | {"desc_act": True})
    without(f"{Q}.g_idx")(folder)


SPOILT: dict[str, tuple[Callable[[Path], None], str]] = {
    "wrong group size": (
        lambda folder: configure(folder, quantization_config=GPTQ | {"group_size": 16}),
        rf"42 of the wrong shape: {Q}.qzeros is \[2, 8\], should be \[4, 8\] for quantization_config.group_size 16",
    ),
    "group size that divides nothing": (
        lambda folder: configure(folder, quantization_config=GPTQ | {"group_size": 48}),
        r"of a shape that quantization_config.group_size 48 does not divide: model.layers.0.self_attn.q_proj is",
    ),
    "missing scales": (without(f"{Q}.scales"), rf"1 missing: {Q}.scales$"),
    "no g_idx": (
        no_order,
        rf"1 missing: {Q}.g_idx$",
    ),
    "g_idx of no groups": (mixed_groups, rf"{Q} cannot be read: g_idx does not put 32 columns in each group"),
    "g_idx of a group that is not there": (
        far_group,
        rf"{Q} cannot be read: g_idx does not put 32 columns in each group",
    ),
    "cut off": (narrowed(f"{Q}.qweight"), rf"{Q}.qweight is \[1, 64\], should be \[8, 64\]"),
    "wrong type": (typed(f"{Q}.qweight", torch.int64), rf"{Q}.qweight is torch.int64, should be torch.int32"),
    "not quantized": (unquantized, rf"{Q}.qweight \(the file has it unquantized\)"),
    "another method": (lambda folder: configure(folder, quantization_config=AWQ), r"of the wrong shape"),
    "no config": (
        lambda folder: configure(folder, quantization_config=None),
        r"does not match a llama model of its config.json",
    ),
}


@pytest.mark.parametrize("case", SPOILT)
def test_a_file_that_is_not_as_its_config_says(case: str, tmp_path: Path):
    checkpoint("llama2", tmp_path, gptq, GPTQ)
    spoil, words = SPOILT[case]
    spoil(tmp_path)
    with pytest.raises(ModelError, match=words):
        load(tmp_path)


FP8 = {"num_bits": 8, "type": "float", "symmetric": True, "strategy": "channel"}
BLOCKS = {"quant_method": "fp8", "weight_block_size": [GROUP, GROUP]}
FORMATS: dict[str, tuple[Writer, dict[str, Any], str]] = {
    "gptq": (gptq, GPTQ, "scales"),
    "awq": (awq, AWQ, "scales"),
    "packed": (packed, compressed("pack-quantized", INT4), "weight_scale"),
    "int8": (int8, compressed("int-quantized", INT8, INT8_TOKENS), "weight_scale"),
    "fp8": (fp8, compressed("float-quantized", FP8), "weight_scale"),
    "fp8 in blocks": (fp8_blocks, BLOCKS, "weight_scale_inv"),
}


@pytest.mark.parametrize("case", FORMATS)
def test_scales_that_are_missing_in_every_format(case: str, tmp_path: Path):
    writer, settings, scales = FORMATS[case]
    checkpoint("llama2", tmp_path, writer, settings)
    without(f"{Q}.{scales}")(tmp_path)
    with pytest.raises(ModelError, match=rf"1 missing: {Q}.{scales}"):
        load(tmp_path)


@pytest.mark.parametrize("size", [16, 48])
@pytest.mark.parametrize("case", ["gptq", "awq", "packed", "fp8 in blocks"])
def test_a_group_size_that_the_scales_are_not_of(case: str, size: int, tmp_path: Path):
    writer, settings, _ = FORMATS[case]
    checkpoint("llama2", tmp_path, writer, settings)
    wrong: dict[str, Any] = {
        "packed": compressed("pack-quantized", INT4 | {"group_size": size}),
        "fp8 in blocks": BLOCKS | {"weight_block_size": [size, size]},
    }
    configure(tmp_path, quantization_config=wrong.get(case, settings | {"group_size": size}))
    with pytest.raises(ModelError, match=r"of (a|the wrong) shape") as caught:
        load(tmp_path)
    assert str(size) in caught.value.message


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (
            GPTQ | {"group_size": 4},
            rf"8 of a number of rows that is no multiple of 8, which gptq holds together: {K} is \[12, 32\]",
        ),
        (
            AWQ | {"group_size": 4},
            rf"8 of a number of rows that is no multiple of 8, which awq holds together: {K} is \[12, 32\]",
        ),
        (
            compressed("pack-quantized", INT4 | {"group_size": 4}),
            r"2 of a number of columns that is no multiple of 8, which 4-bit formats hold together: "
            r"model.layers.0.mlp.down_proj is \[32, 44\]",
        ),
    ],
    ids=["gptq", "awq", "packed"],
)
def test_a_shape_that_four_bits_cannot_hold(settings: dict[str, Any], words: str, tmp_path: Path):
    """It is not the group size that is said to be wrong."""
    sizes = {"num_key_value_heads": 1, "head_dim": 12, "num_attention_heads": 2, "intermediate_size": 44}
    save(tiny_model(**sizes), tmp_path)
    configure(tmp_path, quantization_config=settings)
    with pytest.raises(ModelError, match=words) as caught:
        load(tmp_path)
    assert "group_size" not in caught.value.message


@pytest.mark.parametrize(
    "settings",
    [
        GPTQ,
        AWQ,
        {"quant_method": "fp8"},
        compressed("int-quantized", INT8),
        compressed("pack-quantized", INT4),
    ],
    ids=["gptq", "awq", "fp8", "int8", "packed"],
)
def test_experts_in_one_tensor_have_no_form_but_mxfp4(settings: dict[str, Any], tmp_path: Path):
    reference("gpt-oss").save_pretrained(tmp_path)
    configure(tmp_path, quantization_config=settings)
    with pytest.raises(
        ModelError, match=r"no form for model.layers.0.mlp.experts.*\[\d+, \d+, \d+\]"
    ) as caught:
        load(tmp_path)
    assert caught.value.param == f"{scheme.FIELD}.quant_method"


def test_mxfp4_has_no_form_for_a_matrix():
    everything = scheme.SchemeRule((scheme.ANY,), scheme.Scheme("mxfp4", 4, group=32))
    model = tiny_model()
    model.config = replace(model.config, quantization=scheme.Quantization("mxfp4", (everything,)))
    with pytest.raises(ModelError, match=r"'mxfp4', which has no form for model.layers.0.self_attn.q_proj"):
        divide(model, model.slots())


@pytest.mark.parametrize("byte", [0x7F, 0xFF])
def test_numbers_of_fp8_that_are_none(byte: int, tmp_path: Path):
    """Kernels that know no NaN would take them for a large number."""
    checkpoint("llama2", tmp_path, fp8, compressed("float-quantized", INT8 | {"type": "float"}))

    def edit(stored: dict[str, torch.Tensor]) -> None:
        stored[f"{Q}.weight"].view(torch.uint8)[-1, -1] = byte

    change(tmp_path, edit)
    with pytest.raises(ModelError, match=f"{Q}.weight holds NaN") as caught:
        load(tmp_path)
    assert caught.value.param == f"{Q}.weight"


def test_experts_of_which_some_are_left_out(tmp_path: Path):
    settings = GPTQ | {"dynamic": {r"-:.*experts\.1\..*": {}}}
    checkpoint("mixtral", tmp_path, gptq, settings, ignored=("experts.1.",))
    with pytest.raises(ModelError, match=r"leaves some of layers.0.mlp.experts unquantized"):
        load(tmp_path)


def test_bytes_of_eight_bits_without_a_config(tmp_path: Path):
    """They are no weights by themselves."""
    checkpoint("llama2", tmp_path, int8, compressed("int-quantized", INT8))
    change(tmp_path, lambda stored: [stored.pop(n) for n in list(stored) if n.endswith("weight_scale")])
    configure(tmp_path, quantization_config=None)
    with pytest.raises(ModelError, match=r"21 of a dtype that is not floating-point: .* is torch.int8"):
        load(tmp_path)


def test_several_ranks_are_refused(tmp_path: Path):
    checkpoint("llama2", tmp_path, gptq, GPTQ)
    with pytest.raises(ConfigError, match="weights are quantized") as caught:
        load_core(tmp_path, EngineConfig(tensor_parallel=2))
    assert caught.value.param == "tensor_parallel"
