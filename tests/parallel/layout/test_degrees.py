from typing import Any

import pytest

from rondo.base.errors import ConfigError
from rondo.models import parse
from rondo.parallel.config import LayoutConfig
from rondo.parallel.layout.degrees import Degrees, degrees
from support.tiny import tiny_config


def resolved(ranks: int, **layout: Any) -> Degrees:
    return degrees(LayoutConfig(**layout), ranks, parse(tiny_config()))


def test_what_is_left_is_data_parallel() -> None:
    found = resolved(8, tp=2)
    assert (found.dp, found.replicate, found.shard) == (4, 1, 4)


def test_context_ranks_divide_states_as_data_ranks_do() -> None:
    found = resolved(8, cp=2, dp_replicate=2)
    assert (found.dp, found.replicate, found.shard) == (4, 2, 4)


def test_zero_0_divides_nothing() -> None:
    assert (resolved(4, zero=0).replicate, resolved(4, zero=0).shard) == (4, 1)


@pytest.mark.parametrize(
    ("ranks", "layout", "words"),
    [
        (4, {"dp": 3}, r"layout.dp: dp 3 x tp 1 x pp 1 x cp 1 is 3, and there are 4 ranks"),
        (6, {"tp": 4}, r"layout.dp: dp 1 x tp 4 .* is 4, and there are 6"),
        (4, {"dp_replicate": 3}, r"layout.dp_replicate: 3 does not divide dp 4"),
        (4, {"zero": 0, "dp_replicate": 2}, "leave it at 1"),
        (3, {"tp": 3}, r"layout.tp: 3 does not divide 4 attention heads"),
        (256, {"tp": 256}, r"layout.tp: 256 is too many for a vocabulary of 300"),
        (8, {"tp": 2, "cp": 4}, r"layout.cp: 4 does not divide 2 attention heads of a rank"),
        (4, {"pp": 4}, r"layout.pp: 4 pieces are more than the model's 2 layers"),
        (2, {"pp": 2, "virtual": 2}, r"layout.virtual: .* schedule interleaved"),
        (2, {"pp": 2, "schedule": "interleaved"}, r"layout.virtual: .* 2 or more pieces"),
        (2, {"ep": 2}, r"layout.ep: the model has no experts"),
    ],
)
def test_what_does_not_divide_is_refused_with_the_reason(
    ranks: int, layout: dict[str, Any], words: str
) -> None:
    with pytest.raises(ConfigError, match=words) as refused:
        resolved(ranks, **layout)
    assert str(refused.value.param).startswith("train.layout.")
