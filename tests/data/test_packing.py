import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rondo.base.errors import InvalidRequest
from rondo.data.batching.packing import Document, PackedRow, Tree, pack, padded, plan_rows

alike = st.lists(st.lists(st.integers(1, 2), min_size=1, max_size=6), min_size=1, max_size=12)
documents = st.lists(st.lists(st.integers(1, 99), min_size=1, max_size=20), min_size=1, max_size=12)


def predicted(row: PackedRow) -> list[tuple[tuple[int, ...], int]]:
    """(everything the model sees before it, the token to predict) of each prediction."""
    paths: list[list[int]] = []
    for parent, start, stop in zip(row.parents, row.cu_seqlens, row.cu_seqlens[1:], strict=False):
        context = paths[parent][: row.positions[start]] if parent >= 0 else []
        paths.append(context + row.tokens[start:stop].tolist())
        assert row.positions[start:stop].tolist() == list(range(len(context), len(paths[-1])))
    found = []
    for where, target in zip(row.where.tolist(), row.targets.tolist(), strict=True):
        segment = int(np.searchsorted(row.cu_seqlens, where, side="right")) - 1
        found.append((tuple(paths[segment][: row.positions[where] + 1]), target))
    return found


@given(st.lists(st.integers(1, 30), max_size=40), st.integers(30, 60))
def test_a_plan_holds_each_document_once_within_the_budget(lengths: list[int], budget: int) -> None:
    plan = plan_rows(lengths, budget)
    assert sorted(i for row in plan for i in row) == list(range(len(lengths)))
    assert all(sum(lengths[i] for i in row) <= budget for row in plan)
    assert plan == plan_rows(lengths, budget)
    if lengths:
        # best-fit decreasing never needs more than 11/9 of the fewest rows, plus one
        assert len(plan) <= 11 / 9 * -(-sum(lengths) // budget) * 2 + 1


@given(documents, st.integers(20, 50))
def test_targets_never_cross_documents(tokens: list[list[int]], budget: int) -> None:
    rows = pack([Document(ids, [1.0] * len(ids)) for ids in tokens], budget)
    expected = sorted((tuple(ids[:i]), ids[i]) for ids in tokens for i in range(1, len(ids)))
    assert sorted(p for row in rows for p in predicted(row)) == expected
    assert all(len(row.tokens) <= budget for row in rows)


@given(
    st.lists(st.tuples(st.lists(st.integers(1, 9), min_size=1, max_size=8), alike), min_size=1, max_size=4)
)
def test_answers_that_share_a_prompt_see_what_separate_ones_see(
    groups: list[tuple[list[int], list[list[int]]]],
) -> None:
    shared = [Tree(prompt, [Document(a, [1.0] * len(a)) for a in answers]) for prompt, answers in groups]
    apart = [
        Document(prompt + a, [0.0] * len(prompt) + [1.0] * len(a))
        for prompt, answers in groups
        for a in answers
    ]
    one = sorted(p for row in pack(shared, 64) for p in predicted(row))
    other = sorted(p for row in pack(apart, 64) for p in predicted(row))
    assert one == other
    assert sum(len(r.tokens) for r in pack(shared, 64)) <= sum(
        len(r.tokens) for r in pack(apart, 64)
    ) + 8 * len(groups)


def test_weights_and_columns_stay_with_their_tokens() -> None:
    document = Document([5, 6, 7, 8], [0.0, 0.0, 2.0, 3.0], {"advantages": [0.0, 0.0, 0.5, 0.25]})
    (row,) = pack([document], 8)
    assert row.where.tolist() == [1, 2]
    assert row.targets.tolist() == [7, 8]
    assert row.weights.tolist() == [2.0, 3.0]
    assert row.columns["advantages"].tolist() == [0.5, 0.25]
    assert row.valid == 2


def test_what_does_not_fit_says_which_setting_to_raise() -> None:
    with pytest.raises(InvalidRequest, match="tokens_per_microbatch=4"):
        pack([Document([1] * 9, [1.0] * 9)], 4)
    with pytest.raises(InvalidRequest, match="tokens_per_microbatch=4"):
        pack([Tree([1] * 9, [Document([1, 2], [1.0] * 2)] * 2)], 4)


def test_answers_that_begin_alike_are_computed_once() -> None:
    answers = [[5, 6, 7, 8], [5, 6, 7, 8], [5, 6, 9, 9], [5, 6], [4]]
    tree = Tree(
        [1, 2, 3], [Document(a, [1.0] * len(a), {"at": [float(i)] * len(a)}) for i, a in enumerate(answers)]
    )
    (row,) = pack([tree], 99)
    assert row.tokens.tolist() == [1, 2, 3, 5, 6, 7, 9]
    assert row.parents == [-1, 0, 1, 2]
    assert row.valid == sum(map(len, answers))
    for i, answer in enumerate(answers):
        assert row.targets[row.columns["at"] == i].tolist() == answer


def test_prompts_that_begin_alike_are_computed_once() -> None:
    trees = [
        Tree(prompt, [Document([9, 8], [1.0, 1.0])]) for prompt in ([1, 2, 4], [1, 2, 3, 5], [1, 2, 3, 5])
    ]
    (row,) = pack(trees, 99)
    assert row.tokens.tolist() == [1, 2, 3, 5, 9, 9, 4, 9]
    assert row.parents == [-1, 0, 0, 0, 3]
    assert row.valid == 6


@given(documents, st.integers(1, 8))
def test_padding_predicts_what_was_predicted(tokens: list[list[int]], multiple: int) -> None:
    for row in pack([Document(ids, [1.0] * len(ids)) for ids in tokens], 50):
        longer = padded(row, multiple)
        assert len(longer.tokens) == len(longer.positions) == longer.cu_seqlens[-1]
        assert len(longer.tokens) % multiple == 0
        assert len(longer.tokens) - len(row.tokens) < multiple
        assert predicted(longer) == predicted(row)
