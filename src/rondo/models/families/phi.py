"""Phi-3 and Phi-4: Llama with q, k, v and gate, up fused in the checkpoint, part of each head rotated, LongRoPE."""

from collections.abc import Iterator

from rondo.models.architecture import Dense, Gqa, Layer, ModelConfig
from rondo.models.families import Family
from rondo.models.families.common import (
    Hf,
    activation,
    decoder_slots,
    gqa,
    head_dim,
    linear_slots,
    model_config,
    rope,
    windows,
)
from rondo.models.files.slots import Slot, stacked_rows


def parse(hf: Hf) -> ModelConfig:
    rotary = rope(_renamed(hf), head_dim(hf))
    mlp = Dense(hf["intermediate_size"], activation(hf))
    return model_config(hf, [Layer(gqa(hf, rotary, window), mlp) for window in windows(hf)])


def _renamed(hf: Hf) -> Hf:
    """The config with scaling type `longrope`, which early Phi-3 configs name `su` or `yarn`."""
    scaling = hf.get("rope_scaling")
    if not scaling or scaling.get("type") not in ("su", "yarn"):
        return hf
    return {**hf, "rope_scaling": {**scaling, "type": "longrope"}}


def slots(config: ModelConfig) -> Iterator[Slot]:
    hidden = config.hidden_size

    def attention(theirs: str, ours: str, part: Gqa) -> Iterator[Slot]:
        q, kv = part.num_heads * part.head_dim, part.num_kv_heads * part.head_dim
        rows = [(f"{ours}.q.weight", q), (f"{ours}.k.weight", kv), (f"{ours}.v.weight", kv)]
        yield stacked_rows(f"{theirs}.qkv_proj.weight", rows, hidden)
        yield from linear_slots(f"{theirs}.o_proj", f"{ours}.o")

    def dense(theirs: str, ours: str, part: Dense) -> Iterator[Slot]:
        rows = [(f"{ours}.gate.weight", part.intermediate), (f"{ours}.up.weight", part.intermediate)]
        yield stacked_rows(f"{theirs}.gate_up_proj.weight", rows, hidden)
        yield from linear_slots(f"{theirs}.down_proj", f"{ours}.down")

    return decoder_slots(config, attention=attention, dense=dense)


FAMILY = Family(parse, slots)
