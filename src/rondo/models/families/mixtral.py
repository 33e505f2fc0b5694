"""Mixtral: Mistral with eight experts, two of them chosen for each token."""

from collections.abc import Iterator
from functools import partial

from rondo.models.architecture import Layer, ModelConfig, Moe
from rondo.models.families import Family
from rondo.models.families.common import (
    Hf,
    activation,
    decoder_slots,
    gqa,
    head_dim,
    model_config,
    rope,
    windows,
)
from rondo.models.files.slots import Slot, one
from rondo.ops import RouterSpec

NAMES = {"gate": "w1", "down": "w2", "up": "w3"}


def parse(hf: Hf) -> ModelConfig:
    router = RouterSpec(hf["num_local_experts"], hf["num_experts_per_tok"], "softmax", normalize=True)
    moe = Moe(router, hf["intermediate_size"], activation(hf))
    rotary = rope(hf, head_dim(hf), theta=1000000.0)
    return model_config(hf, [Layer(gqa(hf, rotary, window), moe) for window in windows(hf)])


def moe_slots(theirs: str, ours: str, part: Moe) -> Iterator[Slot]:
    yield one(f"{theirs}.gate.weight", f"{ours}.router.weight")
    for expert in range(part.router.num_experts):
        for name, their_name in NAMES.items():
            yield one(f"{theirs}.experts.{expert}.{their_name}.weight", f"{ours}.experts.{name}", expert)


FAMILY = Family(parse, partial(decoder_slots, moe=moe_slots, moe_name="block_sparse_moe"))
