"""Preference training: preferred answers become more likely than rejected ones."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from rondo.base.errors import InvalidRequest
from rondo.data.batching.groups import group_size
from rondo.data.batching.packing import Document, PackedRow, Tree, pack
from rondo.train.config import PreferenceConfig, TrainConfig
from rondo.train.evaluation.evaluator import Evaluator
from rondo.train.losses.objective import LossRequest, sizes
from rondo.train.losses.preference import Dpo, Ipo, Kto, PairLoss, Simpo
from rondo.train.recipes.answers import Judged, PreferencePair
from rondo.train.recipes.reference import Reference


def loss_of(config: PreferenceConfig) -> PairLoss | Kto:
    beta = {} if config.beta is None else {"beta": config.beta}
    match config.loss:
        case "dpo":
            return Dpo(**beta)
        case "ipo":
            return Ipo(**beta)
        case "simpo":
            return Simpo(**beta, gamma=config.gamma)
        case "kto":
            return Kto(**beta, good_weight=config.good_weight, bad_weight=config.bad_weight)


def pair_trees(pairs: Sequence[PreferencePair], first: int = 0) -> list[Tree]:
    """Trees of pairs. Documents and records are numbered consecutively, from `first` on."""
    return [
        Tree(
            pair.prompt,
            [
                _document(pair.chosen, 2 * record, record, good=True),
                _document(pair.rejected, 2 * record + 1, record, good=False),
            ],
        )
        for record, pair in enumerate(pairs, first)
    ]


def judged_trees(judged: Sequence[Judged], first: int = 0) -> list[Tree]:
    return [
        Tree(one.prompt, [_document(one.answer, record, record, good=one.good)])
        for record, one in enumerate(judged, first)
    ]


def mismatched(judged: Sequence[Judged], longest: int) -> list[Document]:
    """Each prompt with the next answer to a different prompt: KTO estimates the divergence of the policy from the
    change of their likelihood. The assignment is fixed, so that the partition of a batch does not affect it.
    """
    found = []
    for number, (one, other) in enumerate(zip(judged, _next_others(judged), strict=True)):
        answer = other.answer[: max(longest - len(one.prompt), 1)]
        tree = Tree(one.prompt, [_document(answer, len(judged) + number, number, good=False)])
        found += tree.apart()
    return found


def _next_others(judged: Sequence[Judged]) -> Iterator[Judged]:
    """For each answer the first later one with a different prompt, cyclically."""
    nexts: list[Judged] = []
    after = next((each for each in judged if each.prompt != judged[-1].prompt), judged[0])
    for i in reversed(range(len(judged))):
        following = judged[(i + 1) % len(judged)]
        if following.prompt != judged[i].prompt:
            after = following
        nexts.append(after)
    return reversed(nexts)


def _document(answer: Sequence[int], document: int, record: int, *, good: bool) -> Document:
    facts = {"document": float(document), "record": float(record), "chosen": float(good)}
    return Document(answer, [1.0] * len(answer), facts=facts)


def check_sizes(trees: Sequence[Tree], config: TrainConfig) -> None:
    for number, tree in enumerate(trees, 1):
        longest = max(len(tree.prefix) + len(branch.tokens) for branch in tree.branches)
        if longest > config.max_length:
            raise InvalidRequest(
                f"record {number} has {longest} tokens, more than max_length={config.max_length}: "
                "raise it or shorten the record",
                param="train.max_length",
            )
        if group_size(tree) > config.tokens_per_microbatch:
            raise InvalidRequest(
                f"record {number} has {group_size(tree)} tokens in its two answers, which are learned from together: "
                f"more than tokens_per_microbatch={config.tokens_per_microbatch}. Raise it or shorten the record",
                param="train.tokens_per_microbatch",
            )


@dataclass(frozen=True)
class Preference:
    """Objective of preference training."""

    loss: PairLoss | Kto
    reference: Reference | None
    mismatched: Sequence[Document] = ()
    budget: int = 0
    """Tokens in a row of mismatched documents."""

    def __call__(self, evaluator: Evaluator, rows: Sequence[PackedRow]) -> LossRequest:
        loss, found = self.loss, dict[str, float]()
        given = list(rows) if self.reference is None else self.reference.given(evaluator, rows)
        if isinstance(loss, Kto):
            loss = replace(loss, kl=self._kl(evaluator, given))
            found["kl"] = loss.kl
        return LossRequest(given, loss, sizes(evaluator, given, loss) | found)

    def _kl(self, evaluator: Evaluator, rows: Sequence[PackedRow]) -> float:
        assert self.reference is not None
        records = [int(record) for row in rows for record in row.facts["record"]]
        aside = pack([self.mismatched[record] for record in records], self.budget)
        aside = self.reference.given(evaluator, aside)
        policy = evaluator.document_logprobs(aside)
        moved = [own - row.facts["reference"] for own, row in zip(policy, aside, strict=True)]
        total, count = evaluator.totals(sum(float(each.sum(dtype="float64")) for each in moved), len(records))
        return max(0.0, total / count)
