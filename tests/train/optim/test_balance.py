"""Routers are corrected by a row's own tokens, whatever fills it up and however often it is computed."""

import pytest
import torch

from rondo.data.batching.packing import Document, pack
from rondo.parallel.config import Checkpointing
from rondo.train.config import OptimConfig
from rondo.train.learner.learner import Learner
from rondo.train.learner.passes import NOTHING, Passes
from rondo.train.losses.sums import cross_entropy
from support.tiny import TINY_MLA, VOCAB, tiny_model

LENGTH = 37


def counted(
    multiple: int, checkpointing: Checkpointing = "none", nothing: bool = False
) -> tuple[list[list[float]], list[list[float]]]:
    """Of each router: how often each expert was chosen, and what the correction is after a step."""
    model = tiny_model(**TINY_MLA | {"num_hidden_layers": 3})
    learner = Learner(model, OptimConfig(balance=0.01, checkpointing=checkpointing))
    assert isinstance(learner.passes, Passes)
    learner.passes._multiple = multiple
    draw = torch.Generator().manual_seed(3)
    tokens = torch.randint(0, VOCAB, (LENGTH + 1,), generator=draw).tolist()
    rows = pack([Document(tokens, [0.0] * 20 + [1.0] * (LENGTH - 19))], LENGTH)
    if nothing:
        rows.append(NOTHING)
    learner.forward_backward(rows, cross_entropy)
    counts = [count.tolist() for count in learner.balance._counts.values()]
    assert len(counts) == 2
    learner.optim_step()
    return counts, [router.correction.tolist() for router in learner.balance._counts]


def test_what_fills_a_row_up_does_not_count() -> None:
    counts, corrections = counted(1)
    chosen = TINY_MLA["num_experts_per_tok"]
    assert [sum(count) for count in counts] == [LENGTH * chosen, 18 * chosen], (
        "the last layer reads 18 tokens"
    )
    assert sum(abs(each) for each in corrections[0]) > 0.01
    assert counted(64) == (counts, corrections)
    assert counted(64, nothing=True) == (counts, corrections)


@pytest.mark.parametrize("how", ["selective", "full"])
def test_a_layer_that_computes_again_is_counted_once(how: Checkpointing) -> None:
    assert counted(64, how) == counted(1)
