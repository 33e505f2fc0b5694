"""The same bits every way with quantized weights, and with LoRA adapters of requests: those that a learner has with the
same weights and the same adapter."""

from collections.abc import Callable
from copy import deepcopy
from pathlib import Path

import pytest
import torch
from torch import Tensor

from engine.runner.test_compiled_quantized import fp8, int4, int8
from engine.runner.test_deterministic import TYPES, by_every_way, closed, core_of, model_of, scored
from rondo.models import Decoder
from rondo.models.adapters import LoraSpec, attach_lora, detach, load_lora
from rondo.models.parts import DenseMlp, Experts, GqaAttention, Linear, MoeMlp
from rondo.models.quantized.parts import QuantizedExperts, QuantizedLinear
from rondo.ops import Quantized
from rondo.ops.gemm.quantized import pack
from rondo.ops.native.build.build import compiler
from support.adapters import write_lora
from support.threads import threads

pytestmark = pytest.mark.skipif(
    not compiler(), reason="no C compiler here: install gcc to test what it promises"
)
__all__ = ["closed"]  # a fixture

F32, BF16 = TYPES
SOME = ["together", "in pieces", "computed again", "swapped"]


def bytes_both(weight: Tensor) -> Quantized:
    """Activations too."""
    return int8(weight, activations="int8")


def narrow_groups(weight: Tensor) -> Quantized:
    """Of which no kernel reads a step: torch makes the weight wide, and the plain product multiplies."""
    scales = weight.unflatten(1, (-1, 8)).abs().amax(-1) / 7
    codes = (weight / scales.repeat_interleave(8, 1)).round().clamp(-7, 7) + 8
    return Quantized("int4", pack(codes.to(torch.uint8)), scales)


def mxfp4(weight: Tensor) -> Quantized:
    """Codes of any value; what they stand for is of about the weight's size. Columns are a multiple of 32."""
    rows, columns = weight.shape
    codes = torch.randint(0, 16, (rows, columns), generator=torch.Generator().manual_seed(rows)).to(
        torch.uint8
    )
    return Quantized("mxfp4", pack(codes), torch.full((rows, columns // 32), 123, dtype=torch.uint8))


def stacked(weights: Tensor, quantize: Callable[[Tensor], Quantized]) -> Quantized:
    """Of experts [E, N, K]."""
    each = [quantize(weight) for weight in weights]
    names = each[0].tensors
    return Quantized(
        each[0].kind, **{name: torch.stack([one.tensors[name] for one in each]) for name in names}
    )


def quantized(name: str, dtype: torch.dtype, quantize: Callable[[Tensor], Quantized]) -> Decoder:
    """All linear modules of its layers, or, of a mixture, the experts."""
    model = deepcopy(model_of(name, dtype))
    for layer in model.layers:
        mlp = layer.mlp
        if isinstance(mlp, MoeMlp):
            assert isinstance(mlp.experts, Experts)
            held = (stacked(getattr(mlp.experts, part).float(), quantize) for part in ("gate", "up", "down"))
            mlp.experts = QuantizedExperts(mlp.experts, *held)
            continue
        for half in (layer.attention, mlp):
            assert isinstance(half, GqaAttention | DenseMlp)
            for path, plain in list(half.named_children()):
                if isinstance(plain, Linear):
                    setattr(half, path, QuantizedLinear(quantize(plain.weight.float()), plain.bias))
    return model


def learners(model: Decoder, found: list[tuple[list[int], list[float]]]) -> list[list[float]]:
    with threads(2):
        return scored(model, found, shared=False)


@pytest.mark.parametrize(
    ("name", "quantize", "dtype"),
    [
        ("qwen3", bytes_both, F32),
        ("qwen3", int4, BF16),
        ("qwen3", int8, F32),
        ("qwen3", fp8, BF16),
        ("gemma2", narrow_groups, BF16),
        ("gemma2", int4, F32),
        ("gemma2", mxfp4, BF16),
        pytest.param("gemma2", fp8, F32, marks=pytest.mark.long),
        ("gemma2", bytes_both, BF16),
        ("qwen3-moe", int8, BF16),
    ],
)
def test_quantized_weights(name: str, quantize: Callable[[Tensor], Quantized], dtype: torch.dtype) -> None:
    model = quantized(name, dtype, quantize)
    assert (core_of(model).runner.compiled is not None) == (name == "qwen3")
    want = by_every_way(model, SOME)
    assert learners(model, want) == [logprobs for _, logprobs in want]


def test_quantized_weights_beside_a_learner_that_trains_an_adapter() -> None:
    """A fresh adapter adds nothing, to the bit."""
    model = quantized("qwen3", torch.bfloat16, int4)
    want = by_every_way(model, ())
    attach_lora(model, LoraSpec(r=4, targets=("q_proj", "down_proj")))
    assert learners(model, want) == [logprobs for _, logprobs in want]


@pytest.mark.parametrize(
    ("name", "quantize", "dtype"),
    [
        ("qwen3", None, F32),
        pytest.param("qwen3", None, BF16, marks=pytest.mark.long),
        ("qwen3", int4, BF16),
        ("gemma2", None, F32),
        ("qwen3-moe", None, BF16),
    ],
)
def test_adapters_of_requests(
    name: str, quantize: Callable[[Tensor], Quantized] | None, dtype: torch.dtype, tmp_path: Path
) -> None:
    targets = ("q_proj", "v_proj", "o_proj") if name == "qwen3-moe" else ("q_proj", "gate_proj", "down_proj")
    plain = model_of(name, dtype)
    for seed, adapter in enumerate("ab"):
        write_lora(plain, tmp_path / adapter, seed, r=4 + 3 * seed, targets=targets)
    model = plain if quantize is None else quantized(name, dtype, quantize)
    adapters = [None, "a", "b"]
    want = by_every_way(model, SOME, adapters, adapters_dir=str(tmp_path))
    for turn, adapter in enumerate(adapters):
        if adapter is not None:
            load_lora(model, tmp_path / adapter, train=True)
        found = learners(model, want)
        assert [found[i] for i in range(turn, len(want), 3)] == [logprobs for _, logprobs in want[turn::3]], (
            adapter
        )
        if adapter is not None:
            assert found[0] != want[0][1]
            detach(model)


def test_an_adapter_that_hangs_on_the_model(tmp_path: Path) -> None:
    """As in a rollout, where the policy is a base and what trains beside it."""
    model = deepcopy(model_of("qwen3", torch.bfloat16))
    load_lora(model, write_lora(model, tmp_path / "a"), train=True)
    want = by_every_way(model, SOME)
    assert learners(model, want) == [logprobs for _, logprobs in want]
