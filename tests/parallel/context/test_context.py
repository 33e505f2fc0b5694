"""Attention over ranks that hold parts of a row, beside that of one process."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, replace
from threading import get_ident
from typing import Any
from weakref import ref

import pytest
import torch
from torch import Tensor
from torch.distributed import ProcessGroup

from rondo.base.errors import ConfigError
from rondo.models.attend import Attend, Packed
from rondo.ops import AttentionSpec, attention_part
from rondo.ops.dispatch import use_reference
from rondo.parallel.collectives import arrived, start_passing
from rondo.parallel.context import ring
from rondo.parallel.context.context import Context, Method
from rondo.parallel.context.row_cut import RowCut
from rondo.plan.cost.layout import Layout, Policy
from rondo.plan.cost.traffic import context_a_layer
from rondo.plan.sizes.model import ModelShape
from rondo.train.learner.shared_prefix import SharedPrefix
from support.ranks import ThreadRanks
from support.waiting import wait_until
from support.wire import Wire

METHODS: tuple[Method, ...] = ("ulysses", "ring")
SPEC = AttentionSpec(0, 8, 4, 16, 16, 16**-0.5)
DOCUMENTS = [0, 3, 4, 37, 37, 96]
"""Several a row, one of them of one token and one of none; parts of ranks begin and end within them."""

KINDS = {
    "plain": SPEC,
    "as many key heads": replace(SPEC, num_kv_heads=8),
    "few key heads": replace(SPEC, num_kv_heads=2),
    "one key head": replace(SPEC, num_kv_heads=1),
    "window": replace(SPEC, window=9),
    "window of few": replace(SPEC, window=2),
    "soft cap": replace(SPEC, softcap=2.0),
    "sinks": replace(SPEC, sinks=True),
    "all of it": replace(SPEC, window=21, softcap=2.0, sinks=True),
    "narrow values": replace(SPEC, value_dim=8),
}


@dataclass
class Row:
    q: Tensor
    k: Tensor
    v: Tensor
    sinks: Tensor | None
    back: Tensor
    """The gradient of the outputs."""

    @classmethod
    def of(cls, spec: AttentionSpec, length: int, dtype: torch.dtype = torch.float32) -> Row:
        make = torch.Generator().manual_seed(7)

        def drawn(*shape: int) -> Tensor:
            return torch.randn(shape, generator=make).to(dtype)

        return cls(
            drawn(length, spec.num_heads, spec.head_dim),
            drawn(length, spec.num_kv_heads, spec.head_dim),
            drawn(length, spec.num_kv_heads, spec.value_dim),
            drawn(spec.num_heads) if spec.sinks else None,
            drawn(length, spec.num_heads, spec.value_dim),
        )

    def take(self, tokens: Tensor) -> Row:
        return Row(self.q[tokens], self.k[tokens], self.v[tokens], self.sinks, self.back[tokens])

    def through(self, attend: Attend, spec: AttentionSpec) -> dict[str, Tensor]:
        """The output, and the gradients."""
        named = {"q": self.q, "k": self.k, "v": self.v}
        if self.sinks is not None:
            named["sinks"] = self.sinks
        leaves = {name: x.detach().clone().requires_grad_() for name, x in named.items()}
        out = attend(spec, leaves["q"], leaves["k"], leaves["v"], leaves.get("sinks"))
        grads = torch.autograd.grad(out, list(leaves.values()), self.back)
        return {"out": out.detach()} | dict(zip(leaves, grads, strict=True))


def cut_for(length: int, size: int, method: Method) -> RowCut:
    return RowCut(length, size, striped=method == "ring")


def over_ranks(
    ranks: ThreadRanks, size: int, method: Method, spec: AttentionSpec, row: Row, documents: list[int]
) -> dict[str, Tensor]:
    """As `Row.through`, put together from the ranks' parts; the sinks' gradients are added."""

    cut = cut_for(documents[-1], size, method)

    def rank(group: ProcessGroup) -> dict[str, Tensor]:
        own = row.take(torch.from_numpy(cut.tokens(group.rank())))
        return own.through(Context(group, method).attend(Packed(documents), cut), spec)

    parts = ranks.run_in_group(cut.ranks, rank)
    order = torch.cat([torch.from_numpy(cut.tokens(rank)) for rank in range(cut.ranks)])
    back = torch.argsort(order)
    found = {name: torch.cat([part[name] for part in parts])[back] for name in ("out", "q", "k", "v")}
    if row.sinks is not None:
        found["sinks"] = torch.stack([part["sinks"] for part in parts]).sum(0)
    return found


def in_one(spec: AttentionSpec, row: Row, documents: list[int]) -> dict[str, Tensor]:
    return row.through(Packed(documents), spec)


def far(found: Tensor, wanted: Tensor) -> float:
    """How far it is, relative to the largest."""
    return float((found - wanted).abs().max() / wanted.abs().max())


@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize("kind", KINDS)
def test_ulysses_is_attention_in_one_process(ranks: ThreadRanks, kind: str, size: int) -> None:
    spec = KINDS[kind]
    row = Row.of(spec, DOCUMENTS[-1])
    found = over_ranks(ranks, size, "ulysses", spec, row, DOCUMENTS)
    wanted = in_one(spec, row, DOCUMENTS)
    assert torch.equal(found["out"], wanted["out"])
    for name, gradient in wanted.items():
        assert far(found[name], gradient) < 1e-6, name


@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize("kind", KINDS)
def test_a_ring_is_attention_in_one_process(ranks: ThreadRanks, kind: str, size: int) -> None:
    spec = KINDS[kind]
    row = Row.of(spec, DOCUMENTS[-1])
    found = over_ranks(ranks, size, "ring", spec, row, DOCUMENTS)
    for name, wanted in in_one(spec, row, DOCUMENTS).items():
        assert far(found[name], wanted) < 1e-6, name


@pytest.mark.parametrize("method", METHODS)
def test_long_rows(ranks: ThreadRanks, method: Method) -> None:
    documents = [0, 1100, 1101, 1350, 2048]
    row = Row.of(SPEC, documents[-1])
    found = over_ranks(ranks, 4, method, SPEC, row, documents)
    for name, wanted in in_one(SPEC, row, documents).items():
        assert far(found[name], wanted) < 1e-6, name


@pytest.mark.parametrize("method", METHODS)
def test_rows_in_bf16(ranks: ThreadRanks, method: Method) -> None:
    """Each part of a ring is rounded before parts are put together; the exchange rounds nothing."""
    row = Row.of(SPEC, DOCUMENTS[-1], torch.bfloat16)
    found = over_ranks(ranks, 4, method, SPEC, row, DOCUMENTS)
    wanted = in_one(SPEC, row, DOCUMENTS)
    assert method == "ring" or torch.equal(found["out"], wanted["out"])
    for name, one in wanted.items():
        assert found[name].dtype == torch.bfloat16
        assert far(found[name].float(), one.float()) < 2.0**-7, name


def test_parts_travel_while_a_rank_attends_and_few_are_there(
    ranks: ThreadRanks, monkeypatch: pytest.MonkeyPatch
) -> None:
    size, steps, received = 4, defaultdict[int, list[str]](list), defaultdict[int, list[Any]](list)

    def check_few_are_there() -> None:
        """A thread of the backend lets go of what it passed a moment after that was said to have arrived."""
        mine = received[get_ident()]
        wait_until(lambda: sum(each() is not None for each in mine) <= 2)

    def passing(x: Tensor, group: ProcessGroup) -> Tensor:
        coming = start_passing(x, group)
        received[get_ident()].append(ref(coming))
        steps[get_ident()].append("sends")
        check_few_are_there()
        return coming

    def attends(*arguments: Any) -> tuple[Tensor, Tensor]:
        steps[get_ident()].append("attends")
        check_few_are_there()
        return attention_part(*arguments)

    def arrives(x: Tensor) -> Tensor:
        steps[get_ident()].append("waits")
        return arrived(x)

    monkeypatch.setattr(ring, "start_passing", passing)
    monkeypatch.setattr(ring, "attention_part", attends)
    monkeypatch.setattr(ring, "arrived", arrives)
    row = Row.of(SPEC, DOCUMENTS[-1])

    def rank(group: ProcessGroup) -> list[str]:
        cut = cut_for(DOCUMENTS[-1], size, "ring")
        own = row.take(torch.from_numpy(cut.tokens(group.rank())))
        Context(group, "ring").attend(Packed(DOCUMENTS), cut)(SPEC, own.q, own.k, own.v)
        return steps[get_ident()]

    for found in ranks.run_in_group(size, rank):
        assert found == ["sends", "attends", "waits"] * (size - 1) + ["attends"]


def test_a_ring_of_plain_operations(ranks: ThreadRanks) -> None:
    spec = KINDS["all of it"]
    row = Row.of(spec, DOCUMENTS[-1])
    with use_reference():
        found = over_ranks(ranks, 2, "ring", spec, row, DOCUMENTS)
    for name, wanted in in_one(spec, row, DOCUMENTS).items():
        assert far(found[name], wanted) < 1e-6, name


def test_ulysses_with_heads_that_do_not_go_evenly(ranks: ThreadRanks) -> None:
    spec = replace(SPEC, num_heads=12, num_kv_heads=3)
    row = Row.of(spec, DOCUMENTS[-1])
    found = over_ranks(ranks, 4, "ulysses", spec, row, DOCUMENTS)
    for name, wanted in in_one(spec, row, DOCUMENTS).items():
        assert far(found[name], wanted) < 1e-6, name


def test_ulysses_refuses_heads_that_do_not_divide(ranks: ThreadRanks) -> None:
    spec = replace(SPEC, num_heads=6, num_kv_heads=2)

    def rank(group: ProcessGroup) -> None:
        attend = Context(group).attend(Packed([0, 8]), cut_for(8, 4, "ulysses"))
        with pytest.raises(ConfigError, match=r'4 does not divide the 6 heads .* cp_method "ring"'):
            attend(spec, *(torch.zeros(2, heads, 16) for heads in (6, 2, 2)))

    ranks.run_in_group(4, rank)


@pytest.mark.parametrize("method", METHODS)
def test_lengths_are_those_of_whole_documents(ranks: ThreadRanks, method: Method) -> None:
    whole, cut = Packed(DOCUMENTS), cut_for(DOCUMENTS[-1], 4, method)
    parts = ranks.run_in_group(4, lambda group: Context(group, method).attend(whole, cut).lengths)
    for rank, lengths in enumerate(parts):
        assert torch.equal(lengths, whole.lengths[torch.from_numpy(cut.tokens(rank))])


def test_a_ring_refuses_rows_whose_documents_continue_others(ranks: ThreadRanks) -> None:
    shared = SharedPrefix([0, 4, 6, 8], [-1, 0, 0], [0, 4, 4])

    def rank(group: ProcessGroup) -> None:
        with pytest.raises(ConfigError, match='choose "ulysses"'):
            Context(group, "ring").attend(shared, cut_for(8, 2, "ring"))

    ranks.run_in_group(2, rank)


def test_ulysses_takes_rows_whose_documents_continue_others(ranks: ThreadRanks) -> None:
    row, shared = Row.of(SPEC, 8), SharedPrefix([0, 4, 6, 8], [-1, 0, 0], [0, 4, 4])
    cut = cut_for(8, 2, "ulysses")

    def rank(group: ProcessGroup) -> dict[str, Tensor]:
        own = row.take(torch.from_numpy(cut.tokens(group.rank())))
        return own.through(Context(group).attend(shared, cut), SPEC)

    first, second = ranks.run_in_group(2, rank)
    for name, wanted in row.through(shared, SPEC).items():
        assert far(torch.cat([first[name], second[name]]), wanted) < 1e-6


@pytest.mark.parametrize("striped", [False, True])
def test_predictions_come_back_in_their_order(ranks: ThreadRanks, striped: bool) -> None:
    cut = RowCut(12, 3, striped)
    where = torch.tensor([11, 0, 5, 5, 2, 8, 7]).numpy()
    deal = cut.deal(where)
    whole = torch.randn(12, generator=torch.Generator().manual_seed(0))
    weights = torch.arange(1.0, 8.0)

    def rank(group: ProcessGroup) -> tuple[Tensor, Tensor]:
        own = whole[torch.from_numpy(cut.tokens(group.rank()))].requires_grad_()
        read = torch.from_numpy(deal.read(group.rank()))
        found = Context(group).gather(own[read], deal)
        (found * weights).sum().backward()
        assert own.grad is not None
        return found.detach(), own.grad

    gradient = torch.zeros(12).index_add(0, torch.from_numpy(where), weights)
    for number, (found, grad) in enumerate(ranks.run_in_group(3, rank)):
        assert torch.equal(found, whole[torch.from_numpy(where)])
        assert torch.equal(grad, gradient[torch.from_numpy(cut.tokens(number))])


@pytest.mark.parametrize("size", [2, 4, 8])
@pytest.mark.parametrize("keys", [8, 4, 2])
@pytest.mark.parametrize("method", METHODS)
def test_bytes_are_those_of_the_formula(ranks: ThreadRanks, method: Method, keys: int, size: int) -> None:
    spec = replace(SPEC, num_kv_heads=keys)
    row = Row.of(spec, DOCUMENTS[-1], torch.bfloat16)
    whole, cut = Packed(DOCUMENTS), cut_for(DOCUMENTS[-1], size, method)

    def rank(group: ProcessGroup) -> int:
        with Wire(group) as wire:
            own = row.take(torch.from_numpy(cut.tokens(group.rank())))
            own.through(Context(group, method).attend(whole, cut), spec)
        return wire.total

    shape = ModelShape("attention", 1, 128, spec.num_heads, keys, spec.head_dim, 1, 1)
    wanted = context_a_layer(shape, Layout(cp=size, cp_method=method), Policy(), cut.each)
    assert ranks.run_in_group(size, rank) == [wanted] * size
