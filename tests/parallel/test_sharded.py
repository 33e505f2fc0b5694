"""Operations on DTensors, in two processes, are those of one: results, gradients, where both lie, and the compiled
versions are what computes them."""

import json
import os
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

from parallel._sharded import CASES
from rondo import ops
from rondo.ops.native.build.build import compiler
from rondo.ops.sharded.layout import shards_among

RANK = Path(__file__).with_name("_sharded.py")
SECONDS = 240
"""A rank takes ten seconds, most of them imports."""
TOLERANCE = 4e-6
"""Of fp32, relative to the largest: sums over ranks are taken in another order."""
BF16_TOLERANCE = 2.0**-7
"""Each of two summands and their sum are rounded, by up to 2**-9 of what is larger than the sum by little."""


@pytest.fixture(scope="module")
def reports(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    folder = tmp_path_factory.mktemp("sharded")
    outs = [folder / f"{rank}.json" for rank in range(2)]
    paths = [str(RANK.parents[1]), os.environ.get("PYTHONPATH", "")]
    environment = os.environ | {"GLOO_SOCKET_IFNAME": "lo", "PYTHONPATH": os.pathsep.join(paths)}
    ranks = [
        subprocess.Popen(
            [sys.executable, str(RANK), str(folder / "meeting"), str(rank), str(out)],
            env=environment,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank, out in enumerate(outs)
    ]
    try:
        errors = [rank.communicate(timeout=SECONDS)[1] for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()
    for rank, error in zip(ranks, errors, strict=True):
        assert rank.returncode == 0, error[-3000:]
    return [json.loads(out.read_text()) for out in outs]


@cache
def versions_are_compiled() -> bool:
    return bool(compiler())


def check(found: dict[str, Any], tolerance: float = TOLERANCE) -> None:
    assert found["forward"] < tolerance
    assert max(found["gradients"]) < tolerance
    if versions_are_compiled():
        assert found["versions"]
        # What cuts logits into blocks of rows is no kernel, nor what adds before it norms; what they give them to is.
        hand_on = ("_token_logprobs", "add_rms_norm")
        modules = {module for name, module in found["versions"] if name not in hand_on}
        assert all(module.startswith("rondo.ops.native.") for module in modules), modules


@pytest.mark.parametrize("name", CASES)
def test_an_operation_on_shards_is_that_on_the_whole(name: str, reports: list[dict[str, Any]]) -> None:
    for report in reports:
        found = report["line"][name]
        check(found, BF16_TOLERANCE if "bf16" in name else TOLERANCE)
        assert found["output"] == found["wanted"]
        assert found["equal"] or found["output"] == "Partial" or not versions_are_compiled()


def test_a_mesh_of_two_axes(reports: list[dict[str, Any]]) -> None:
    for report in reports:
        for found in report["square"].values():
            check(found)
            assert found["output"] == found["wanted"]


def test_parameters_that_are_gathered_take_the_compiled_versions(reports: list[dict[str, Any]]) -> None:
    """And each rank's documents get the bits that they get on one."""
    for report in reports:
        check(report["gathered"])
        assert report["gathered"]["equal"] or not versions_are_compiled()


def test_a_model_divided_by_heads_and_neurons(reports: list[dict[str, Any]]) -> None:
    for report in reports:
        check(report["divided"])


def test_a_plain_tensor_with_a_gradient_is_refused(reports: list[dict[str, Any]]) -> None:
    for report in reports:
        assert "DTensor.from_local" in report["refused"]["a plain tensor with a gradient"]


@pytest.mark.parametrize(
    ("what", "said"),
    [
        ("rows of a quantized product", "a product with quantized weights"),
        ("quantized", "a quantized weight"),
        ("rows of experts", "a mixture of experts"),
        ("experts", "a mixture of experts"),
    ],
)
def test_what_takes_no_dtensors_says_what_to_give(
    what: str, said: str, reports: list[dict[str, Any]]
) -> None:
    for report in reports:
        message = report["refused"][what]
        assert message.startswith(f"{said} takes no DTensors")
        assert "to_local()" in message


def test_without_dtensors_nothing_is_asked_of_them() -> None:
    x = torch.ones(2, 16)
    assert not shards_among(x, None, 3)
    assert not ops.linear.version(x, x).__module__.startswith("rondo.ops.sharded")
