"""Loss, gradients and weights of a learner on several ranks are those of one process."""

from typing import Any

import pytest

from rondo.data.batching.packing import padded
from rondo.parallel.config import LayoutConfig
from rondo.parallel.layout.cut import microbatches
from rondo.plan.cost.layout import Layout
from rondo.plan.cost.traffic import pipeline_a_microbatch
from rondo.plan.sizes.model import ModelShape
from support.launch import fork
from support.layouts import alone, on_ranks, rows_of, same, together
from support.tiny import (
    TINY_BIASES,
    TINY_GEMMA,
    TINY_GPT_OSS,
    TINY_MLA,
    TINY_OLMO,
    VOCAB,
)
from support.tiny import TINY_MOE as MOE

TINY_MOE = MOE | {"router_aux_loss_coef": 1.0}
"""With a balancing loss that counts as much as the other one."""
TWO: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"zero": zero}, {"tie_word_embeddings": tied})
    for zero, tied in [(0, True), (1, False), (2, True), (3, False)]
]
TWO += [({"ep": 2}, TINY_MOE), ({"ep": 2, "zero": 2}, TINY_MLA)]
TWO += [({"cp": 2, "zero": zero}, {}) for zero in (0, 3)]
TWO += [({"cp": 2, "cp_method": "ring", "zero": zero}, {}) for zero in (1, 2)]
TWO += [({"tp": 2}, {}), ({"tp": 2, "zero": 0}, TINY_MOE)]
TWO += [({"zero": 3}, {"adapter": "lora"}), ({"zero": 0}, {"adapter": "tokenformer"})]
TWO += [({"cp": 2}, {"adapter": "lora"}), ({"cp": 2, "cp_method": "ring"}, {"adapter": "tokenformer"})]
TWO += [
    ({"pp": 2}, {"num_hidden_layers": 3, "tie_word_embeddings": False}),
    ({"pp": 2, "schedule": "gpipe", "zero": 0}, {}),
    ({"pp": 2, "schedule": "interleaved", "virtual": 2}, {"num_hidden_layers": 4}),
    ({"pp": 2, "schedule": "zero-bubble"}, {"num_hidden_layers": 4}),
    ({"pp": 2, "schedule": "zero-bubble"}, {"num_hidden_layers": 4, "adapter": "lora"}),
    ({"pp": 2, "schedule": "zero-bubble"}, TINY_MLA | {"num_hidden_layers": 4}),
]
FOUR: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"zero": 3}, {}),
    ({"zero": 2, "dp_replicate": 2}, {}),
    ({"zero": 1, "dp_replicate": 2}, {}),
    ({"zero": 3, "dp_replicate": 2}, {"tie_word_embeddings": False}),
    ({"ep": 2}, TINY_MOE),
    ({"ep": 4, "zero": 1}, TINY_MOE),
    ({"ep": 2, "dp_replicate": 2}, TINY_MLA),
    ({"cp": 4}, {}),
    ({"cp": 4, "cp_method": "ring"}, {}),
    ({"cp": 2, "dp_replicate": 2}, {}),
    ({"cp": 2, "cp_method": "ring"}, {}),
    ({"cp": 2, "ep": 4}, TINY_MOE),
    ({"cp": 2, "cp_method": "ring", "ep": 2}, TINY_MLA),
    ({"tp": 4}, TINY_OLMO),
    ({"tp": 4, "zero": 1}, TINY_GPT_OSS),
    ({"tp": 2}, TINY_GEMMA),
    ({"tp": 2, "zero": 2}, TINY_MLA),
    ({"tp": 2, "ep": 4}, TINY_MLA | {"num_hidden_layers": 3}),
    ({"tp": 2, "zero": 1, "dp_replicate": 2}, TINY_BIASES),
    ({"tp": 2, "ep": 4}, TINY_MOE),
    ({"tp": 2, "cp": 2}, {}),
    ({"tp": 2, "cp": 2, "cp_method": "ring", "ep": 4}, TINY_MOE),
    ({"pp": 4}, {"num_hidden_layers": 4}),
    (
        {"pp": 4, "schedule": "interleaved", "virtual": 2},
        {"num_hidden_layers": 8, "tie_word_embeddings": False},
    ),
    ({"pp": 4, "schedule": "zero-bubble"}, {"num_hidden_layers": 8, "tie_word_embeddings": False}),
    ({"pp": 2, "zero": 3}, {"num_hidden_layers": 5, "tie_word_embeddings": False}),
    ({"pp": 2, "zero": 2, "schedule": "interleaved", "virtual": 2}, {"num_hidden_layers": 4}),
    ({"pp": 2, "zero": 1, "dp_replicate": 2, "schedule": "gpipe"}, TINY_GEMMA),
    ({"pp": 2, "tp": 2, "schedule": "zero-bubble"}, {"num_hidden_layers": 4}),
    ({"pp": 2, "tp": 2}, TINY_MLA | {"num_hidden_layers": 3}),
    ({"pp": 2, "tp": 2, "schedule": "zero-bubble"}, {"num_hidden_layers": 4, "tie_word_embeddings": False}),
    ({"pp": 2, "cp": 2, "cp_method": "ring"}, {}),
    ({"pp": 2, "cp": 2, "schedule": "zero-bubble"}, {"num_hidden_layers": 4}),
    # Stages balance their own layers, which one process does not: without the balancing loss.
    ({"pp": 2, "ep": 2}, TINY_MOE | {"router_aux_loss_coef": 0.0}),
]
EARLY = frozenset([6, 9, 12, 18, 21, 24, 27, 33])
"""Of FOUR, what no two ranks can have: two ways to divide at once, each way among them, and four stages."""
EIGHT: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"pp": 2, "tp": 2, "zero": 2}, {"num_hidden_layers": 4, "tie_word_embeddings": False}),
]
"""Three ways to divide at once: dp, tp and pp."""
HEAVY = ("torch.distributed.fsdp", "rondo.parallel.apply", "rondo.train.learner.pipelined")
"""What ranks would import by themselves when they come to it."""
SHAPE = ModelShape("tiny", layers=4, hidden=32, heads=4, kv_heads=2, head_dim=8, intermediate=48, vocab=VOCAB)


PARTS = 8
"""Cases of one launch: each part is a test, so that none takes minutes."""


def _parts() -> list[Any]:
    """Most layouts of four ranks are left to `make test-long`: each costs seconds of CPU time."""
    early = [case for number, case in enumerate(FOUR) if number in EARLY]
    others = [case for number, case in enumerate(FOUR) if number not in EARLY]
    return [
        pytest.param(ranks, cases[first : first + PARTS], id=f"{name}-{first}", marks=marks)
        for name, ranks, cases, marks in (
            ("2", 2, TWO, ()),
            ("4", 4, early, ()),
            ("4-others", 4, others, pytest.mark.long),
            ("8", 8, EIGHT, ()),
        )
        for first in range(0, len(cases), PARTS)
    ]


@pytest.mark.parametrize(("ranks", "cases"), _parts())
def test_ranks_are_as_one(ranks: int, cases: list[tuple[dict[str, Any], dict[str, Any]]]) -> None:
    for_ranks = fork(on_ranks, ranks, cases, imports=HEAVY)
    for i, (layout, changes) in enumerate(cases):
        outcomes = [of_rank[i] for of_rank in for_ranks]
        one = alone(**changes)
        for outcome in outcomes:
            same(outcome, one)
        assert together(outcomes).keys() == one.weights.keys()
        if layout.get("pp", 1) > 1 and not changes.get("tie_word_embeddings", True):
            assert max(outcome.passed for outcome in outcomes) == _planned(LayoutConfig(**layout), ranks)


def _planned(layout: LayoutConfig, ranks: int) -> float:
    """Bytes that the planner has a stage send, in twice the precision; by the ranks of dp that have most to send."""
    dp = ranks // (layout.pp * layout.tp * layout.cp)
    shares = [rows_of(0)[rank::dp] for rank in range(dp)]
    count = microbatches(layout, max(map(len, shares)))
    longest = max(len(padded(row, layout.tp * layout.cp).tokens) for rows in shares for row in rows)
    planned = Layout(pp=layout.pp, tp=layout.tp, virtual=layout.virtual, schedule=layout.schedule)
    return 2 * pipeline_a_microbatch(SHAPE, planned, longest / layout.cp) * count
