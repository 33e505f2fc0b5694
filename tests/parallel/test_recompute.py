"""A layer that computes again keeps what the planner counts, and has the same gradients to the bit."""

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor

from rondo import models
from rondo.models import Decoder
from rondo.models.adapters import LoraSpec, TokenformerSpec, attach_lora, attach_tokenformer
from rondo.models.adapters.attached import trainable
from rondo.models.attend import Packed
from rondo.models.parts import Linear
from rondo.models.quantized.parts import QuantizedLinear
from rondo.ops import Quantized
from rondo.ops.dispatch import use_reference
from rondo.ops.kept import SelectiveCheckpoint
from rondo.parallel.config import Checkpointing
from rondo.parallel.recompute import recompute
from rondo.plan.cost.layout import Layout, Policy
from rondo.plan.cost.memory import saved_a_layer
from rondo.plan.sizes.hf import shape_of
from support.alive import bytes_left_by
from support.families import CONFIGS
from support.tiny import tiny_config, tiny_model

TOKENS = 64
LLAMA = tiny_config(
    model_type="llama",
    architectures=["LlamaForCausalLM"],
    hidden_size=64,
    intermediate_size=224,
    head_dim=16,
)
SPARSE = tiny_config(
    model_type="qwen3_moe",
    architectures=["Qwen3MoeForCausalLM"],
    hidden_size=64,
    head_dim=16,
    moe_intermediate_size=96,
    num_experts=8,
    num_experts_per_tok=2,
    decoder_sparse_step=1,
    mlp_only_layers=[],
    norm_topk_prob=True,
)
HOW: tuple[Checkpointing, ...] = ("none", "full", "selective")


def passed(model: Decoder) -> Tensor:
    tokens = torch.arange(TOKENS) % 199
    positions = torch.cat([torch.arange(40), torch.arange(TOKENS - 40)])
    hidden = model.trunk(tokens, positions, Packed([0, 40, TOKENS]))
    return model.head.logprobs(hidden, tokens.roll(-1), 1.0)


def gradients(model: Decoder, how: Checkpointing) -> list[Tensor]:
    recompute(model.layers, how)
    model.zero_grad()
    passed(model).mean().backward()
    return [p.grad.clone() for p in model.parameters() if p.grad is not None]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("family", ["qwen3", "gemma2", "gpt-oss", "deepseek-v3", "qwen3-moe"])
def test_gradients_are_those_of_a_layer_that_keeps_everything(family: str, dtype: torch.dtype) -> None:
    model = models.new(CONFIGS[family]().to_dict(), dtype=dtype)
    whole = gradients(model, "none")
    for how in HOW[1:]:
        for mine, theirs in zip(gradients(model, how), whole, strict=True):
            assert torch.equal(mine, theirs)


def test_so_are_those_of_plain_torch() -> None:
    model = tiny_model()
    with use_reference():
        whole = gradients(model, "none")
        for how in HOW[1:]:
            assert all(map(torch.equal, gradients(model, how), whole))


def a_layer(config: dict[str, Any], how: Checkpointing) -> float:
    """Bytes a token that one more layer leaves for the way back, in bf16."""

    def left(layers: int) -> int:
        model = models.new(config | {"num_hidden_layers": layers}, dtype=torch.bfloat16)
        recompute(model.layers, how)
        passed(model)
        _, size = bytes_left_by(lambda: passed(model))
        return size

    return (left(3) - left(2)) / TOKENS


@pytest.mark.parametrize("how", HOW[1:])
@pytest.mark.parametrize("config", [LLAMA, SPARSE], ids=["dense", "sparse"])
def test_a_layer_keeps_what_the_planner_counts(config: dict[str, Any], how: Checkpointing) -> None:
    shape = shape_of(config, "own")
    expected = saved_a_layer(shape, Layout(), Policy(checkpointing=how, swiglu="kernel"), TOKENS)
    if how == "selective" and shape.experts is not None:
        # Which rows went to an expert is looked up again: the planner has them sent. A router's scores are kept.
        expected += 2 * shape.experts.count - 2 * shape.experts.chosen * shape.hidden
    assert a_layer(config, how) == expected


def adapted(kind: str) -> Decoder:
    """With an adapter of which no part is zero."""
    model = models.new(LLAMA)
    if kind == "lora":
        attach_lora(model, LoraSpec(r=4))
    elif kind == "tokenformer":
        attach_tokenformer(model, TokenformerSpec(r=4, heads=2))
    if kind != "none":
        draw = torch.Generator().manual_seed(1)
        for parameter in trainable(model):
            parameter.data.normal_(0, 0.2, generator=draw)
    return model


def products_held(model: Decoder) -> list[dict[int, tuple[int, ...]]]:
    """Of each layer the products that it keeps, by their numbers."""
    keepers: list[SelectiveCheckpoint] = []

    def made(wanted: Callable[[int], bool]) -> SelectiveCheckpoint:
        keepers.append(SelectiveCheckpoint(wanted))
        return keepers[-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("rondo.parallel.recompute.SelectiveCheckpoint", made)
        recompute(model.layers, "selective")
        passed(model)
    held = [keeper._held.items() for keeper in keepers]
    return [{number: tuple(x.shape) for (kind, number), x in each if kind == "product"} for each in held]


def quantize(model: Decoder) -> None:
    """Its layers' matrices in 8 bits."""
    for module in list(model.layers.modules()):
        for name, child in list(module.named_children()):
            if type(child) is Linear:
                weight = child.weight.detach()
                scales = weight.abs().amax(1, keepdim=True) / 127
                numbers = (weight / scales).round().to(torch.int8)
                setattr(module, name, QuantizedLinear(Quantized("int8", numbers, scales)))


@pytest.mark.parametrize("native", [True, False])
def test_an_adapter_over_quantized_weights_changes_nothing_either(native: bool) -> None:
    model = adapted("none")
    quantize(model)
    attach_lora(model, LoraSpec(r=4, targets="all-linear"))
    with nullcontext() if native else use_reference():
        kept = products_held(model)
        assert kept == products_held(adapted("none"))
        whole = gradients(model, "none")
        assert all(map(torch.equal, gradients(model, "selective"), whole))


@pytest.mark.parametrize("kind", ["lora", "tokenformer"])
def test_an_adapter_changes_nothing_of_what_is_kept(kind: str) -> None:
    """Its own products are computed again, and are not taken for the layer's."""
    model = adapted(kind)
    kept = products_held(model)
    assert kept == products_held(adapted("none"))
    assert kept[0] == {0: (TOKENS, 64), 2: (TOKENS, 32), 3: (TOKENS, 64), 4: (TOKENS, 224)}, "q, v, out, gate"
    whole = gradients(model, "none")
    for how in HOW[1:]:
        assert all(map(torch.equal, gradients(model, how), whole))
