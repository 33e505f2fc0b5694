"""Division of documents and trees among data-parallel ranks."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from rondo.data.batching.balance import balanced, deal, size_of
from rondo.data.batching.packing import Document, Tree

documents = st.lists(st.integers(0, 9), min_size=1, max_size=12).map(
    lambda ids: Document(ids, [1.0] * len(ids))
)
trees = st.builds(
    Tree, st.lists(st.integers(0, 9), min_size=1, max_size=6), st.lists(documents, min_size=1, max_size=6)
)


@given(st.lists(documents | trees, max_size=8), st.integers(1, 5))
def test_every_document_is_in_one_part_with_its_prefix(items: list[Document | Tree], parts: int) -> None:
    def told(items: list[Document | Tree]) -> Counter[tuple[tuple[int, ...], int]]:
        found = Counter[tuple[tuple[int, ...], int]]()
        for item in items:
            tree = item if isinstance(item, Tree) else Tree((), [item])
            found.update((tuple(tree.prefix), id(branch)) for branch in tree.branches)
        return found

    found = balanced(items, parts)
    assert len(found) == parts
    assert told([item for part in found for item in part]) == told(items)
    assert found == balanced(items, parts), "on every rank the same"
    if parts == 1:
        assert found == [items]


@given(st.lists(st.integers(1, 100), max_size=30), st.integers(1, 6))
def test_no_part_exceeds_another_by_more_than_one_item(sizes: list[int], parts: int) -> None:
    loads = [0] * parts
    for size, part in zip(sizes, deal(sizes, parts), strict=True):
        loads[part] += size
    assert max(loads) - min(loads) <= max(sizes, default=0)


def test_a_prompt_with_most_of_the_tokens_is_split_by_answers() -> None:
    answers = [Document([i] * 10, [1.0] * 10) for i in range(8)]
    parts = balanced([Tree([1, 2], answers)], 4)
    assert [len(part) for part in parts] == [1] * 4
    assert {size_of(part[0]) for part in parts} == {22}
