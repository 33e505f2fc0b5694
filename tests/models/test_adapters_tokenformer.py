"""Tokenformer against the formula as published, with every token's own matrix W(x) made."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from rondo.base.errors import ModelError
from rondo.models import Decoder, Packed, load
from rondo.models.adapters import (
    LoraSpec,
    TokenformerSpec,
    adapter_of,
    attach_lora,
    attach_tokenformer,
    detach,
    load_adapter,
    load_tokenformer,
    merge,
    save_adapter,
    save_lora,
    save_tokenformer,
    trainable,
)
from rondo.models.adapters.tokenformer import Tokenformer
from support.families import VOCAB, reference

TOKENS = torch.randint(3, VOCAB, (20,), generator=torch.Generator().manual_seed(1))


def published(x: Tensor, k: Tensor, v: Tensor, p: Tensor, heads: int) -> Tensor:
    """(x W(x)) P with W(x) [N, H, r] = softmax(q kᵀ / √d) v, by PyTorch's own attention over the slots."""
    tokens, hidden = x.shape
    rank = p.shape[0]
    q = x.view(tokens, heads, -1).transpose(0, 1)
    keys = k.view(heads, heads, -1).transpose(0, 1)
    values = v.view(heads, heads, -1).transpose(0, 1)
    mixed = F.scaled_dot_product_attention(q, keys, values)
    w_nhr = mixed.transpose(0, 1).reshape(tokens, hidden, rank)
    return torch.bmm(x[:, None], w_nhr).squeeze(1) @ p


def random_part(hidden: int, rank: int, heads: int) -> Tokenformer:
    torch.manual_seed(0)
    spec = TokenformerSpec(rank, heads)
    return Tokenformer(spec, *(torch.randn(shape) for shape in spec.shapes(hidden).values()))


@pytest.mark.parametrize(
    ("tokens", "hidden", "rank", "heads"), [(1, 8, 1, 1), (7, 64, 5, 4), (33, 48, 16, 3)]
)
def test_formula_and_gradients(tokens: int, hidden: int, rank: int, heads: int) -> None:
    part = random_part(hidden, rank, heads).double()
    x = torch.randn(tokens, hidden, dtype=torch.float64, requires_grad=True)
    weights = (x, part.k, part.v, part.p)
    upstream = torch.randn(tokens, hidden, dtype=torch.float64)
    ours, theirs = part(x), published(x, part.k, part.v, part.p, heads)
    assert torch.allclose(ours, theirs, rtol=1e-10, atol=1e-10)
    for mine, expected in zip(
        torch.autograd.grad(ours, weights, upstream),
        torch.autograd.grad(theirs, weights, upstream),
        strict=True,
    ):
        assert torch.allclose(mine, expected, rtol=1e-9, atol=1e-9)


def test_no_matrix_a_token() -> None:
    """The largest tensor made has heads * heads * r numbers a token, not hidden * r."""
    tokens, hidden, rank, heads = 64, 256, 8, 4
    part = random_part(hidden, rank, heads)
    sizes: list[int] = []

    class Sizes(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            result = func(*args, **(kwargs or {}))
            sizes.extend(r.numel() for r in tree_leaves(result) if isinstance(r, Tensor))
            return result

    with Sizes():
        part(torch.randn(tokens, hidden))
    assert (
        max(sizes)
        <= max(tokens * heads * heads * rank, tokens * hidden, part.v.numel())
        < tokens * hidden * rank / 3
    )


@torch.no_grad()
def logits_of(model: Decoder) -> Tensor:
    attend = Packed([0, len(TOKENS)])
    return model(TOKENS, attend.positions, attend)


@pytest.fixture(params=["llama3", "gemma2", "qwen3-moe"])
def base(request: pytest.FixtureRequest, tmp_path: Path) -> Decoder:
    reference(request.param).save_pretrained(tmp_path / "base")
    return load(tmp_path / "base")


def test_attach_train_save_load_detach(base: Decoder, tmp_path: Path) -> None:
    plain = logits_of(base)
    names = {name for name, _ in base.named_parameters()}
    adapter = attach_tokenformer(base, TokenformerSpec(r=6))
    assert torch.equal(logits_of(base), plain), "a fresh adapter changes nothing"
    assert {name for name, _ in base.named_parameters() if ".adapter." not in name} == names
    hidden, layers = base.config.hidden_size, len(base.layers)
    assert sum(parameter.numel() for parameter in trainable(base)) == layers * hidden * (4 + 4 * 6 + 6)
    optimiser = torch.optim.SGD(trainable(base), 0.5)
    attend = Packed([0, len(TOKENS)])
    loss = F.cross_entropy(base(TOKENS, attend.positions, attend)[:-1], TOKENS[1:])
    loss.backward()
    optimiser.step()
    assert all(parameter.grad is None for parameter in adapter.frozen)
    trained = logits_of(base)
    assert not torch.equal(trained, plain)
    save_adapter(base, tmp_path / "adapter")
    detach(base)
    assert torch.equal(logits_of(base), plain)
    load_adapter(base, tmp_path / "adapter")
    assert torch.equal(logits_of(base), trained)
    save_tokenformer(base, tmp_path / "again")
    for file in (tmp_path / "adapter").iterdir():
        assert (tmp_path / "again" / file.name).read_bytes() == file.read_bytes()


def test_first_weights(tmp_path: Path) -> None:
    reference("llama2").save_pretrained(tmp_path / "base")
    model = load(tmp_path / "base")
    attach_tokenformer(model, TokenformerSpec(r=32), seed=4)
    part = model.layers[0].mlp.adapter
    hidden = model.config.hidden_size
    assert part.p.abs().max() == 0
    assert part.k.std().item() == pytest.approx(3 / math.sqrt(hidden / 4), rel=0.15)
    assert 0.95 < (part.v.abs().max() * math.sqrt(hidden) / 3).item() <= 1
    twin = load(tmp_path / "base")
    attach_tokenformer(twin, TokenformerSpec(r=32), seed=4)
    assert torch.equal(twin.layers[1].mlp.adapter.v, model.layers[1].mlp.adapter.v)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"r": 7}, "3 of the wrong shape|6 of the wrong shape"),
        ({"r": 0}, "r is 0, should be a whole number above 0"),
        ({"heads": None}, "heads is None"),
        ({"heads": 5}, "5 heads do not divide|of the wrong shape"),
        ({"peft_type": "LORA"}, "peft_type is 'LORA', should be 'TOKENFORMER'"),
    ],
)
def test_bad_adapter(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    reference("llama2").save_pretrained(tmp_path / "base")
    model = load(tmp_path / "base")
    attach_tokenformer(model, TokenformerSpec(r=6))
    save_tokenformer(model, tmp_path / "adapter")
    detach(model)
    path = tmp_path / "adapter" / "adapter_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    with pytest.raises(ModelError, match=message):
        load_tokenformer(model, tmp_path / "adapter")
    assert adapter_of(model) is None


def test_kinds_do_not_mix(tmp_path: Path) -> None:
    reference("llama2").save_pretrained(tmp_path / "base")
    model = load(tmp_path / "base")
    with pytest.raises(ModelError, match="7 heads do not divide the model's hidden size 64"):
        attach_tokenformer(model, TokenformerSpec(heads=7))
    attach_tokenformer(model, TokenformerSpec(r=2))
    for verb in (merge, lambda m: save_lora(m, tmp_path / "lora")):
        with pytest.raises(ModelError, match="not LoRA"):
            verb(model)
    detach(model)
    attach_lora(model, LoraSpec())
    with pytest.raises(ModelError, match="not Tokenformer"):
        save_tokenformer(model, tmp_path / "tokenformer")
    save_adapter(model, tmp_path / "lora")
    assert "base_model.model.model.layers.0.mlp.up_proj.lora_A.weight" in load_file(
        tmp_path / "lora" / "adapter_model.safetensors"
    )
