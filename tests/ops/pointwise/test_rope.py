"""Rotary tables against transformers' own, for every scaling."""

from typing import Any

import pytest
import torch
import transformers as hf
from torch import Tensor
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

from rondo.models.families.common import rope
from rondo.ops import RopeSpec, rope_tables, rotate

DIM = 16
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}
SCALINGS: dict[str, dict[str, Any]] = {
    "linear": {"rope_type": "linear", "factor": 3.0},
    "dynamic": {"rope_type": "dynamic", "factor": 3.0},
    "yarn": YARN,
    "yarn, other bands": {**YARN, "beta_fast": 16, "beta_slow": 2, "truncate": False},
    "yarn, attention factor": {**YARN, "attention_factor": 0.7},
    "yarn, mscale": {**YARN, "mscale": 0.7, "mscale_all_dim": 1.2},
    "llama3": {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64,
    },
    "longrope": {
        "rope_type": "longrope",
        "short_factor": [1.0 + i / 10 for i in range(DIM // 2)],
        "long_factor": [2.0 + i / 5 for i in range(DIM // 2)],
        "original_max_position_embeddings": 64,
    },
    "longrope, attention factor": {
        "rope_type": "longrope",
        "short_factor": [1.0] * (DIM // 2),
        "long_factor": [3.0] * (DIM // 2),
        "factor": 2.0,
        "attention_factor": 1.3,
        "original_max_position_embeddings": 64,
    },
}


def config_of(scaling: dict[str, Any], theta: float = 10000.0) -> hf.LlamaConfig:
    return hf.LlamaConfig(
        hidden_size=2 * DIM,
        num_attention_heads=2,
        max_position_embeddings=128,
        rope_parameters={"rope_theta": theta, **scaling},
    )


def tables(spec: RopeSpec, positions: Tensor, length: int) -> tuple[Tensor, Tensor]:
    cos, sin = rope_tables(spec, positions, torch.full_like(positions, length), torch.float32)
    assert cos.shape == sin.shape == (len(positions), 1, spec.dim // 2)
    return cos[:, 0], sin[:, 0]


@pytest.mark.parametrize("theta", [10000.0, 500000.0])
@pytest.mark.parametrize("length", [1, 64, 65, 128, 200, 1000])
@pytest.mark.parametrize("scaling", SCALINGS.values(), ids=SCALINGS)
def test_tables(scaling: dict[str, Any], length: int, theta: float) -> None:
    config = config_of(scaling, theta)
    spec = rope(config.to_dict(), DIM)
    inverse, factor = ROPE_INIT_FUNCTIONS[spec.kind](config, torch.device("cpu"), seq_len=length)
    positions = torch.arange(length)
    angles = positions[:, None].float() * inverse
    cos, sin = tables(spec, positions, length)
    assert torch.allclose(cos, angles.cos() * factor, atol=2e-5)
    assert torch.allclose(sin, angles.sin() * factor, atol=2e-5)


def test_every_kind_of_transformers_is_covered_or_refused() -> None:
    covered = {scaling["rope_type"] for scaling in SCALINGS.values()}
    assert set(ROPE_INIT_FUNCTIONS) - {"default", "proportional"} == covered


def test_plain_frequencies() -> None:
    cos, sin = tables(RopeSpec(4, 100.0), torch.tensor([0, 3]), 4)
    angles = torch.tensor([[0.0, 0.0], [3.0, 0.3]])
    assert torch.allclose(cos, angles.cos())
    assert torch.allclose(sin, angles.sin())


def test_rows_of_several_lengths_are_each_as_if_alone() -> None:
    for kind in ("dynamic", "longrope"):
        spec = rope(config_of(SCALINGS[kind]).to_dict(), DIM)
        positions = torch.cat([torch.arange(n) for n in (30, 500)])
        lengths = torch.tensor([30] * 30 + [500] * 500)
        cos, _ = rope_tables(spec, positions, lengths, torch.float32)
        alone = torch.cat([tables(spec, torch.arange(n), n)[0] for n in (30, 500)])
        assert torch.equal(cos[:, 0], alone)


def test_rotation() -> None:
    spec = RopeSpec(DIM, 10000.0)
    q, k = torch.randn(9, 4, DIM), torch.randn(9, 2, DIM)
    cos, sin = rope_tables(spec, torch.arange(9), None, torch.float32)
    whole = [torch.cat([table, table], -1)[:, 0][None] for table in (cos, sin)]
    expected = apply_rotary_pos_emb(q.transpose(0, 1)[None], k.transpose(0, 1)[None], *whole)
    for ours, theirs in zip((q, k), expected, strict=True):
        assert torch.allclose(rotate(spec, ours, cos, sin), theirs[0].transpose(0, 1), atol=1e-6)


def test_part_of_a_head_passes_through() -> None:
    spec = RopeSpec(6, 10000.0)
    x = torch.randn(5, 3, DIM)
    cos, sin = rope_tables(spec, torch.arange(5), None, torch.float32)
    rotated = rotate(spec, x, cos, sin)
    assert torch.equal(rotated[..., 6:], x[..., 6:])
    assert torch.equal(rotated[0], x[0])
    assert torch.allclose(rotated[..., :6], rotate(spec, x[..., :6].contiguous(), cos, sin))


def test_interleaved_pairs_give_the_same_products() -> None:
    """As complex numbers multiplied by e^(i·angle), which is how DeepSeek writes it."""
    spec = RopeSpec(DIM, 10000.0, interleaved=True)
    q, k = torch.randn(2, 11, 3, DIM)
    cos, sin = rope_tables(spec, torch.arange(11), None, torch.float32)
    turn = torch.complex(cos, sin)
    complex_q, complex_k = (
        torch.view_as_complex(x.unflatten(-1, (-1, 2)).contiguous()) * turn for x in (q, k)
    )
    expected = torch.einsum("qhd,khd->hqk", complex_q, complex_k.conj()).real
    ours = torch.einsum("qhd,khd->hqk", rotate(spec, q, cos, sin), rotate(spec, k, cos, sin))
    assert torch.allclose(ours, expected, atol=1e-4)


def test_only_the_distance_counts() -> None:
    spec = RopeSpec(DIM, 10000.0)
    q, k = torch.randn(2, 1, 1, DIM)

    def product(at_q: int, at_k: int) -> float:
        turned = [
            rotate(spec, x, *rope_tables(spec, torch.tensor([at]), None, torch.float32))
            for x, at in ((q, at_q), (k, at_k))
        ]
        return float((turned[0] * turned[1]).sum())

    assert product(7, 3) == pytest.approx(product(104, 100), abs=1e-4)


def test_tables_first_made_in_inference_serve_training() -> None:
    spec = RopeSpec(8, 12345.0, kind="linear", factor=2.0)
    x = torch.randn(3, 1, 8, requires_grad=True)
    with torch.inference_mode():
        rope_tables(spec, torch.arange(3), None, torch.float32)
    cos, sin = rope_tables(spec, torch.arange(3), None, torch.float32)
    rotate(spec, x, cos, sin).square().sum().backward()
    assert x.grad is not None
    assert torch.allclose(x.grad, 2 * x.detach(), atol=1e-5), "a rotation keeps lengths"


def test_dtype_is_the_callers_and_frequencies_stay_exact() -> None:
    spec = RopeSpec(DIM, 10000.0)
    positions = torch.tensor([100_000])
    cos, _ = rope_tables(spec, positions, None, torch.bfloat16)
    exact, _ = rope_tables(spec, positions, None, torch.float32)
    assert cos.dtype == torch.bfloat16
    assert torch.equal(cos, exact.bfloat16())
