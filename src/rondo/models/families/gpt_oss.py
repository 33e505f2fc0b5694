"""gpt-oss: attention sinks, alternating windows, YaRN, biased experts with a clamped SwiGLU."""

from collections.abc import Iterator
from functools import partial

from rondo.base.errors import ModelError
from rondo.models.architecture import Layer, ModelConfig, Moe
from rondo.models.families import Family
from rondo.models.families.common import Hf, decoder_slots, gqa, head_dim, model_config, rope, windows
from rondo.models.files.slots import Slot, TensorMapping, one
from rondo.ops import RouterSpec
from rondo.ops.pointwise.activation import SWIGLU_ALPHA, SWIGLU_LIMIT


def parse(hf: Hf) -> ModelConfig:
    for key, value in (("swiglu_limit", SWIGLU_LIMIT), ("swiglu_alpha", SWIGLU_ALPHA)):
        if hf.get(key, value) != value:
            raise ModelError(f"config.json: {key} {hf[key]} is not supported, only {value}", param=key)
    router = RouterSpec(hf["num_local_experts"], hf["num_experts_per_tok"], "softmax_of_chosen")
    moe = Moe(router, hf["intermediate_size"], "clamped_swiglu", router_bias=True, expert_bias=True)
    bias = bool(hf.get("attention_bias", True))
    rotary = rope(hf, head_dim(hf), theta=150000.0)
    layers = [
        Layer(gqa(hf, rotary, window, qkv_bias=bias, out_bias=bias, sinks=True), moe)
        for window in _windows(hf)
    ]
    return model_config(hf, layers)


def _windows(hf: Hf) -> list[int | None]:
    if hf.get("layer_types"):
        return windows(hf)
    return [hf.get("sliding_window", 128) if i % 2 == 0 else None for i in range(hf["num_hidden_layers"])]


def moe_slots(hidden: int, theirs: str, ours: str, part: Moe) -> Iterator[Slot]:
    """Slots of the checkpoint's experts: gate and up are one tensor with alternating columns, stacked over experts,
    transposed."""
    experts, inner = part.router.num_experts, part.intermediate
    even, odd = (..., slice(0, None, 2)), (..., slice(1, None, 2))
    yield one(f"{theirs}.router.weight", f"{ours}.router.weight")
    yield one(f"{theirs}.router.bias", f"{ours}.router.bias")
    yield Slot(
        f"{theirs}.experts.gate_up_proj",
        (
            TensorMapping(f"{ours}.experts.gate", into=even, transposed=True),
            TensorMapping(f"{ours}.experts.up", into=odd, transposed=True),
        ),
        (experts, hidden, 2 * inner),
    )
    yield Slot(
        f"{theirs}.experts.gate_up_proj_bias",
        (
            TensorMapping(f"{ours}.experts.gate_bias", into=even),
            TensorMapping(f"{ours}.experts.up_bias", into=odd),
        ),
        (experts, 2 * inner),
    )
    yield one(f"{theirs}.experts.down_proj", f"{ours}.experts.down", transposed=True)
    yield one(f"{theirs}.experts.down_proj_bias", f"{ours}.experts.down_bias")


def slots(config: ModelConfig) -> Iterator[Slot]:
    return decoder_slots(config, moe=partial(moe_slots, config.hidden_size))


FAMILY = Family(parse, slots)
