"""Layers with quantized weights as one compiled call, against the model with the weights they stand for."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from rondo.models.quantized.parts import QuantizedLinear
from rondo.ops.gemm.quantized import Quantized, pack
from rondo.ops.native.build.build import compiler
from rondo.ops.native.decoder.layers import PROJECTIONS, DenseDecoder
from support.feeder import WAYS, Feeder, model_of

pytestmark = pytest.mark.skipif(
    not compiler(), reason="no C compiler here: install gcc to test the compiled layers"
)


def int8(weight: Tensor, **others: object) -> Quantized:
    scales = weight.abs().amax(1, keepdim=True) / 127
    return Quantized("int8", (weight / scales).round().to(torch.int8), scales, **others)


def int4(weight: Tensor) -> Quantized:
    """Grouped as the width allows, with a zero for each group, columns in an order of their own."""
    columns = weight.shape[1]
    group = 32 if columns % 32 == 0 else columns
    order = torch.randperm(columns, generator=torch.Generator().manual_seed(columns))
    grouped = weight[:, order].unflatten(1, (-1, group))
    low, high = grouped.amin(-1, keepdim=True), grouped.amax(-1, keepdim=True)
    scales = (high - low) / 15
    zeros = (-low / scales).round()
    codes = ((grouped / scales).round() + zeros).clamp(0, 15).to(torch.uint8).flatten(1)
    return Quantized("int4", pack(codes), scales[..., 0], zeros[..., 0].to(torch.uint8), order)


def fp8(weight: Tensor) -> Quantized:
    scale = weight.abs().max() / 448
    return Quantized("fp8", (weight / scale).to(torch.float8_e4m3fn), scale.reshape(1, 1))


KINDS = {
    "int8": dict.fromkeys(PROJECTIONS, int8),
    "int4": dict.fromkeys(PROJECTIONS, int4),
    "fp8": dict.fromkeys(PROJECTIONS, fp8),
    "some of them, of several kinds": {"q": int8, "k": fp8, "v": int4, "up": int4, "down": int8},
}


def feeder_of(kinds: dict, **changes: object) -> Feeder:
    model = model_of(intermediate_size=96, **changes)
    for layer in model.layers:
        for name, quantize in kinds.items():
            half = layer.attention if name in "qkvo" else layer.mlp
            plain = getattr(half, name)
            setattr(half, name, QuantizedLinear(quantize(plain.weight.float()), plain.bias))
    return Feeder(model)


@pytest.mark.parametrize("kind", KINDS)
def test_every_way_gives_the_models_own_rows_and_the_same_bits(kind: str) -> None:
    feeder = feeder_of(KINDS[kind])
    for ours, theirs in zip(feeder.same_in_every_way(1, 2, 3), feeder.want(), strict=True):
        assert (ours - theirs).abs().max() <= 1e-3 * theirs.abs().max()


def test_biases_stay_beside_quantized_weights() -> None:
    feeder = feeder_of(
        KINDS["int8"], model_type="qwen2", architectures=["Qwen2ForCausalLM"], torch_dtype="bfloat16"
    )
    assert feeder.compiled.model.layers[0].attention.q.bias is not None
    with torch.inference_mode():
        got = feeder.feed(WAYS["in chunks"])
    for ours, theirs in zip(got, feeder.want(), strict=True):
        assert (ours - theirs).abs().max() <= 3e-2 * theirs.abs().max()


def test_a_quantized_head() -> None:
    plain = feeder_of({}).compiled._decoder
    weight = int8(plain.ends.head.float(), activations="int8")
    x = torch.randn(5, plain.hidden)
    head = DenseDecoder([], replace(plain.ends, head=weight), plain.eps, plain.offset).head(x)
    wide = replace(plain.ends, head=weight.dequantized())
    want = DenseDecoder([], wide, plain.eps, plain.offset).head(x)
    assert (head - want).abs().max() <= 0.03 * want.abs().max()
    assert not torch.equal(head, want)
