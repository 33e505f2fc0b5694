"""A checkpoint that mixes dtypes runs in the one most of it is stored in."""

from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from rondo.models import Packed, load
from support.families import reference


def test_the_commonest_dtype_wins(tmp_path: Path) -> None:
    reference("qwen2").bfloat16().save_pretrained(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    odd = ("model.norm.weight", "model.layers.1.self_attn.q_proj.weight")
    save_file({k: v.float() if k in odd else v for k, v in tensors.items()}, tmp_path / "model.safetensors")
    model = load(tmp_path)
    assert {parameter.dtype for parameter in model.parameters()} == {torch.bfloat16}
    attend = Packed([0, 5])
    assert model(torch.arange(5), attend.positions, attend).isfinite().all()
    assert {parameter.dtype for parameter in load(tmp_path, dtype=torch.float32).parameters()} == {
        torch.float32
    }
