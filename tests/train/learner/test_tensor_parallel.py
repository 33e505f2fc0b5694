"""Layers that are divided: with adapters and answers to one prompt as in one process; what is sent, and what never is
in memory."""

from typing import Any

from rondo.plan.cost.layout import Layout, Policy, StepBatch
from rondo.plan.cost.traffic import traffic
from rondo.plan.sizes.hf import shape_of
from support.launch import fork
from support.layouts import alone, same
from support.tiny import TINY_MLA_2, TINY_MOE, TINY_OLMO, VOCAB, tiny_config
from train import _divided

RANKS = 2
CASES: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"tp": 2}, {"adapter": "lora", "num_key_value_heads": 1}),
    ({"tp": 2}, TINY_MLA_2 | {"adapter": "lora"}),
    ({"tp": 2, "zero": 1}, TINY_MOE | {"adapter": "tokenformer"}),
    ({"tp": 2, "ep": 2}, TINY_MOE | {"adapter": "tokenformer"}),
    ({"tp": 2}, TINY_OLMO | {"answers": True}),
    ({"tp": 2}, {"architectures": ["Qwen3ForSequenceClassification"], "num_labels": 1}),
]


def test_divided_layers() -> None:
    for_ranks = fork(_divided.everything, RANKS, CASES)
    for i, (_, changes) in enumerate(CASES):
        one = alone(**changes)
        for outcomes, *_ in for_ranks:
            same(outcomes[i], one)

    shape = shape_of(tiny_config(**_divided.LLAMA), "tiny")
    (_, first, spared), (_, second, _) = for_ranks
    for how in _divided.CHECKPOINTING:
        policy = Policy(zero=3, checkpointing=how)
        wanted = traffic(shape, Layout(tp=RANKS), policy, StepBatch(1, _divided.LENGTH)).tensor
        for sent, largest, _ in (first[how], second[how]):
            assert sent == wanted
            assert largest < _divided.LENGTH * VOCAB
        assert first[how][2] == second[how][2]  # to the last bit
    assert spared == shape.layers * 2 * 2 * shape.hidden * _divided.LENGTH  # what two half layers gather
