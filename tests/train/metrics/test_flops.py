"""The closed form is what torch counts, operation by operation, on models small enough to compute."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from rondo.data.batching.packing import Document, PackedRow, Tree, pack
from rondo.models.adapters import LoraSpec, attach_lora
from rondo.models.decoder import Decoder
from rondo.ops import AttentionSpec
from rondo.ops.dispatch import use_reference
from rondo.parallel.context.context import Context
from rondo.parallel.pipeline.stage import Stage
from rondo.plan.sizes.hf import shape_of
from rondo.train.learner.passes import inputs_of
from rondo.train.metrics.flops import Flops
from support.tiny import TINY_MLA, TINY_MOE, VOCAB, tiny_config, tiny_model

WINDOWS: dict[str, Any] = {
    "sliding_window": 5,
    "use_sliding_window": True,
    "layer_types": ["sliding_attention", "full_attention"],
}
FAMILIES = {"gqa": {}, "mla": TINY_MLA, "moe": TINY_MOE, "windows": WINDOWS, "wide": {"num_hidden_layers": 3}}


class OneByOne:
    """Attention by products that are not larger than what is counted: each query with the keys that it sees, or with
    all of its document, of a window at most."""

    def __init__(self, row: PackedRow, *, causal: bool) -> None:
        self.seen = [_seen(row, at) for at in range(len(row.tokens))]
        self.ends = [_seen(row, end - 1) for end in row.cu_seqlens[1:]]
        self.segment = np.searchsorted(row.cu_seqlens, np.arange(len(row.tokens)), side="right") - 1
        self.causal = causal

    @property
    def lengths(self) -> Tensor:
        raise AssertionError("operations are counted of a step, which asks nothing of lengths")

    def __call__(
        self, spec: AttentionSpec, q: Tensor, k: Tensor, v: Tensor, sinks: Tensor | None = None
    ) -> Tensor:
        groups = spec.num_heads // spec.num_kv_heads
        k, v = k.repeat_interleave(groups, 1), v.repeat_interleave(groups, 1)
        out = []
        for at in range(len(q)):
            keys = self.seen[at] if self.causal else self.ends[self.segment[at]]
            keys = keys[-(spec.window or len(keys)) :]
            scores = torch.bmm(q[at][:, None], k[keys].permute(1, 2, 0))
            out.append(torch.bmm(scores.softmax(-1), v[keys].transpose(0, 1))[:, 0])
        return torch.stack(out)


def _seen(row: PackedRow, at: int) -> list[int]:
    """Where in the row those are that the token at `at` sees without a window, in the order of their positions."""
    segment = int(np.searchsorted(row.cu_seqlens, at, side="right")) - 1
    found, until = list[int](), int(row.positions[at]) + 1
    while segment >= 0:
        begin, end = row.cu_seqlens[segment : segment + 2]
        found = [i for i in range(begin, end) if row.positions[i] < until] + found
        until = int(row.positions[begin])
        segment = row.parents[segment]
    return found


def counted(model: Decoder, row: PackedRow, *, causal: bool) -> int:
    tokens, inputs = inputs_of(row, 1.0, VOCAB, torch.device("cpu"), Context())
    inputs = replace(inputs, attend=OneByOne(row, causal=causal))
    with FlopCounterMode(display=False) as counter, use_reference():
        Stage(model)(tokens, inputs).sum().backward()
    return counter.get_total_flops()


def documents(*sizes: int) -> list[Document]:
    random = np.random.default_rng(0)
    return [Document(random.integers(0, VOCAB, size + 1).tolist(), [1.0] * (size + 1)) for size in sizes]


@pytest.mark.parametrize("family", FAMILIES)
def test_it_is_what_torch_counts(family: str) -> None:
    model = tiny_model(**FAMILIES[family])
    [row] = pack(documents(13, 4, 1, 9), 64)
    work = Flops(model).of([row])
    assert work.tokens == 27
    assert work.full == pytest.approx(counted(model, row, causal=False), rel=1e-6)
    assert work.causal == pytest.approx(counted(model, row, causal=True), rel=1e-6)


def test_what_nobody_predicts_from_ends_in_the_last_layer() -> None:
    model = tiny_model()
    [document] = documents(20)
    [row] = pack([Document(document.tokens, [0.0] * 15 + [1.0] * 6)], 64)
    assert Flops(model).of([row]).full == pytest.approx(counted(model, row, causal=False), rel=1e-6)


def test_answers_share_their_prompt() -> None:
    """Its last token goes through the head once for each answer, where once would do."""
    model = tiny_model()
    prompt, *answers = documents(11, 5, 7)
    [row] = pack([Tree(prompt.tokens, answers)], 64)
    work, apart = Flops(model).of([row]), Flops(model).of(pack(Tree(prompt.tokens, answers).apart(), 64))
    again = 6 * 32 * VOCAB
    assert work.causal + again == pytest.approx(counted(model, row, causal=True), rel=1e-6)
    assert work.causal < apart.causal


def test_the_base_under_an_adapter_has_no_gradients_of_its_own() -> None:
    """Torch leaves out the gradients of the first layer's inputs too, which nobody asks for."""
    model = tiny_model()
    attach_lora(model, LoraSpec(r=4, alpha=8, targets="all-linear"), seed=0)
    [row] = pack(documents(30), 64)
    config = model.config.layers[0].attention
    spared = 2 * 30 * 32 * 8 * (config.num_heads + 2 * config.num_kv_heads)
    spared += 2 * 30 * 3 * 4 * 32
    found = counted(model, row, causal=True)
    assert Flops(model).of([row]).causal == pytest.approx(found + spared, rel=1e-6)


@pytest.mark.parametrize("family", FAMILIES)
def test_the_planner_counts_alike(family: str) -> None:
    """It knows one length of all documents; its causal half leaves out half of the diagonal."""
    config = tiny_config(**FAMILIES[family])
    length = 24
    work = Flops(tiny_model(**FAMILIES[family])).of(pack(documents(length, length), 64))
    planned = shape_of(config, "tiny")
    assert work.full == pytest.approx(2 * length * planned.flops_per_token(length, causal=False))
    assert work.causal == pytest.approx(2 * length * planned.flops_per_token(length), rel=0.02)
