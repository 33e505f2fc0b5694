from hypothesis import given
from hypothesis import strategies as st

from rondo.data.input.holdout import held_out_records

RECORDS = st.lists(st.integers(0, 200).map(lambda n: {"text": str(n)}), max_size=60)


@given(RECORDS, st.floats(0, 0.9), st.randoms())
def test_equal_records_are_in_one_part_whatever_their_order(
    records: list[dict[str, str]], share: float, random: object
) -> None:
    held_out = held_out_records(records, share)
    texts = {records[index]["text"] for index in held_out}
    assert held_out == {index for index, record in enumerate(records) if record["text"] in texts}
    assert len(texts) == int(len({record["text"] for record in records}) * share)
    other = list(records)
    random.shuffle(other)  # type: ignore[attr-defined]
    assert {other[index]["text"] for index in held_out_records(other, share)} == texts


def test_few_records_are_not_divided() -> None:
    assert held_out_records([{"text": str(n)} for n in range(9)], 0.1) == set()
    assert len(held_out_records([{"text": str(n)} for n in range(10)], 0.1)) == 1
