"""Losses of whole answers, KTO's estimate, Muon and averages: on two ranks they are those of one process."""

from typing import Any

import pytest
import torch

from support.judging import on_ranks, steps
from support.launch import fork

CASES: list[tuple[dict[str, Any], str, str]] = [
    ({"zero": 3}, "dpo", "adamw"),
    ({"zero": 0}, "kto", "adamw"),
    ({"cp": 2}, "kto", "adamw"),
    ({"tp": 2}, "dpo", "adamw"),
    ({"pp": 2}, "dpo", "adamw"),
    ({"zero": 3}, "reward", "adamw"),
    ({"pp": 2}, "reward", "adamw"),
    ({"zero": 3}, "dpo", "muon"),
    ({"tp": 2}, "dpo", "muon"),
    ({"pp": 2}, "kto", "muon"),
]


def test_ranks_are_as_one() -> None:
    of_ranks = fork(on_ranks, 2, CASES, seconds=300)
    for i, (layout, kind, optimizer) in enumerate(CASES):
        expected, weights = steps(kind, optimizer)
        for metrics, own in (said[i] for said in of_ranks):
            for step, rel in enumerate((1e-5, 1e-3)):  # a step makes more of what rounding did
                for name, value in expected[step].items():
                    assert metrics[step][name] == pytest.approx(value, rel=rel, abs=rel), (layout, kind, name)
            near = 2e-5 if optimizer == "adamw" else 1e-3  # Muon's iteration is in bf16
            for name, weight in own.items():
                torch.testing.assert_close(
                    weight, weights[name], atol=near, rtol=1e-4, msg=f"{layout} {name}"
                )
