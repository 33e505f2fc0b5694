"""How products are cut: whatever is chosen changes no bit, is bounded in time, and is kept for the next start."""

import json
import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

from rondo import ops
from rondo.ops.native.build import tune as tuning
from rondo.ops.native.build import tuned
from rondo.ops.native.build.build import compiler
from rondo.ops.native.build.tune import ROWS_EACH, chosen, tune, ways_of
from rondo.ops.native.build.tuned import AS_BUILT, COLUMNS, FEWS, Product, TunedSplit, WorkSplit, cut_of
from rondo.ops.native.gemm.linear import always_take_bf16, product
from support.threads import threads

pytestmark = pytest.mark.skipif(not compiler(), reason="no C compiler here: install gcc to test its products")

PRODUCT = Product(torch.bfloat16, 512, 128, 2)
FOUND = TunedSplit(few=24, columns=512, times_with_few_rows=1.25, times_with_many_rows=1.0)


@pytest.fixture(autouse=True)
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file of the test's own, and nothing known."""
    monkeypatch.setattr(tuned, "_cuts", {})
    monkeypatch.setattr(tuned, "cache_dir", lambda: tmp_path)
    return tuned.path()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("rows", [1, 9, 25, 40, 61, 130])
def test_no_cut_changes_a_bit(rows: int, dtype: torch.dtype) -> None:
    x, weight, bias = (torch.randn(shape).to(dtype) for shape in ((rows, 272), (1090, 272), (1090,)))
    want = product(x, weight, bias)
    for few in (1, *FEWS, 1000):
        for columns in COLUMNS:
            for count in (1, 2, 3):
                assert torch.equal(product(x, weight, bias, WorkSplit(few, columns), count), want)


def test_the_best_is_taken_where_it_gains_enough() -> None:
    """Up to 20 rows a thread columns are faster, from 24 on rows are; of blocks one gains a little."""
    shares = {("rows", rows): 1.0 for rows in ROWS_EACH}
    shares |= {("columns", rows): 0.5 if rows < 24 else 1.5 for rows in ROWS_EACH}
    blocks = {("block", 128): 0.99, ("block", 256): 1.0, ("block", 512): 1.2, ("block", 1024): 1.3}
    found = chosen(shares | blocks)
    assert (found.few, found.columns) == (24, 256)
    assert found.times_with_few_rows == pytest.approx(len(ROWS_EACH) / (len(ROWS_EACH) - 4 * 0.5))
    assert found.times_with_many_rows == 1
    assert chosen(shares).columns == AS_BUILT.columns
    assert chosen({("block", columns): columns / 1024 for columns in COLUMNS}).columns == 128


def test_every_way_is_tried_and_none_that_leaves_no_choice() -> None:
    ways = ways_of(PRODUCT)
    assert set(ways) == {
        *((what, rows) for what in ("rows", "columns") for rows in ROWS_EACH),
        *(("block", columns) for columns in COLUMNS),
    }
    assert all(way() > 0 for way in ways.values())
    assert {what for what, _ in ways_of(PRODUCT._replace(threads=1))} == {"block"}
    assert {what for what, _ in ways_of(PRODUCT._replace(dtype=torch.float32))} == {"rows", "columns"}


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Every way is said to take as long as it has a number, and counted."""
    tries: list[int] = []

    def way(number: int) -> Callable[[], float]:
        return lambda: float(tries.append(number) or number)  # type: ignore[func-returns-value]

    monkeypatch.setattr(
        tuning, "ways_of", lambda each: {name: way(i + 1) for i, name in enumerate(ways_of(PRODUCT))}
    )
    return tries


def test_what_was_found_is_used_and_kept(
    kept: Path, quick: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    found = tune([PRODUCT, PRODUCT], seconds=60.0)
    assert list(found) == [PRODUCT.name]
    assert len(quick) == tuning.ROUNDS * (2 * len(ROWS_EACH) + len(COLUMNS))
    assert cut_of(*PRODUCT) == (8, 128)
    assert json.loads(kept.read_text())["machine"] == tuned.machine()
    monkeypatch.setattr(tuned, "_cuts", {})
    quick.clear()
    assert tune([PRODUCT]) == found
    assert cut_of(*PRODUCT) == (8, 128)
    assert not quick


def test_time_is_bounded_and_the_rest_is_left_for_the_next_start(kept: Path, quick: list[int]) -> None:
    assert tune([PRODUCT], seconds=0.0) == {}
    assert not quick
    assert cut_of(*PRODUCT) == AS_BUILT
    assert not kept.exists()


def test_small_products_and_those_that_leave_no_choice_are_left_alone(kept: Path) -> None:
    assert tune([Product(torch.bfloat16, 64, 64, 2), Product(torch.float32, 512, 256, 1)]) == {}
    assert not kept.exists()


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        '{"machine": "x"}',
        '{"machine": "HERE", "products": {"a": {"few": 9000, "columns": 256, "times_with_few_rows": 1.0, '
        '"times_with_many_rows": 1.0}}}',
        '{"machine": "HERE", "products": {"a": {"few": 12}}}',
        '{"machine": "another", "products": {}}',
    ],
)
def test_a_file_that_is_not_whole_or_of_another_machine_is_ignored(
    text: str, kept: Path, caplog: pytest.LogCaptureFixture
) -> None:
    kept.parent.mkdir(parents=True)
    kept.write_text(text.replace("HERE", tuned.machine()))
    with caplog.at_level(logging.WARNING):
        assert tuned.read() == {}
    assert "tuned" in caplog.text
    tuned.add({PRODUCT.name: FOUND})
    assert tuned.read() == {PRODUCT.name: FOUND}


def test_bytes_that_are_no_text_are_ignored_too(kept: Path) -> None:
    kept.parent.mkdir(parents=True)
    kept.write_bytes(b"\xff\xfe\x00")
    assert tuned.read() == {}


def test_writers_do_not_clash(kept: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda i: tuned.add({f"{i}": FOUND}), range(40)))
    found = tuned.read()
    assert found
    assert all(each == FOUND for each in found.values())
    assert [file.name for file in kept.parent.iterdir()] == [kept.name]


def test_a_home_that_cannot_be_written_to_costs_the_next_start_alone(
    kept: Path, quick: list[int], caplog: pytest.LogCaptureFixture
) -> None:
    kept.parent.write_text("a file where the folder would be")
    with caplog.at_level(logging.WARNING):
        assert tune([PRODUCT], seconds=60.0)
    assert "could not be kept" in caplog.text


def test_who_wants_the_same_bits_everywhere_has_products_as_built(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[object, ...]] = []
    monkeypatch.setattr("rondo.ops.native.gemm.linear.cut_of", lambda *each: asked.append(each) or AS_BUILT)
    x, weight = torch.ones(40, 128), torch.ones(512, 128)
    with threads(2):
        let_go = always_take_bf16(test_who_wants_the_same_bits_everywhere_has_products_as_built)
        ops.linear(x, weight)
        assert not asked
        let_go()
        ops.linear(x, weight)
    assert asked == [(torch.float32, 512, 128, 2)]
