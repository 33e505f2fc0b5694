"""The compiled step by a CPU's own bf16 instructions, which are emulated where the CPU has none."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from rondo.ops.native.build import ahead, build, level
from rondo.ops.native.gemm.linear import _compiled_is_faster
from support.feeder import Feeder, check_bf16, model_of

HEADER = Path(__file__).parents[2] / "ops" / "native" / "emulated.h"
pytestmark = pytest.mark.skipif(
    not build.compiler() or "avx2" not in level.available(),
    reason="emulated for a CPU with AVX2, by a C compiler: install gcc",
)


@pytest.fixture(params=["AVX-512 BF16", "AMX"])
def instructions(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    flag = "-DEMULATE_TILES" if request.param == "AMX" else "-DEMULATE_DOTS"
    monkeypatch.setenv("RONDO_CPU", "avx2")
    monkeypatch.setattr(build, "FLAGS", [*build.FLAGS, "-include", str(HEADER), flag])
    build.library.cache_clear()
    yield request.param
    build.library.cache_clear()


def test_a_steps_rows_are_the_models_and_the_same_in_every_way(instructions: str) -> None:
    assert ahead.runs("bf16") == instructions
    assert ahead.runs("fp32") == "AVX2"
    feeder = Feeder(model_of(intermediate_size=112, head_dim=32).to(torch.bfloat16))
    check_bf16(feeder.same_in_every_way(1, 2, 3), feeder.want())


def test_they_are_taken_where_the_cpu_multiplies_bf16(
    instructions: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rondo.ops.native.gemm.linear._compiled_is_faster", _compiled_is_faster.__wrapped__)
    monkeypatch.setattr("rondo.ops.native.gemm.linear.cpu_multiplies_bf16", lambda: True)
    monkeypatch.setattr("rondo.ops.native.gemm.linear.best", lambda: "avx2")
    Feeder(model_of().to(torch.bfloat16))  # which says that the model is compiled


def test_torch_multiplies_where_they_are_not_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RONDO_CPU", "")
    monkeypatch.setattr("rondo.ops.native.gemm.linear._wanted", set())
    monkeypatch.setattr("rondo.ops.native.gemm.linear._compiled_is_faster", _compiled_is_faster.__wrapped__)
    monkeypatch.setattr("rondo.ops.native.gemm.linear.cpu_multiplies_bf16", lambda: True)
    if ahead.multiplies_bf16():
        pytest.skip("this CPU's own bf16 instructions are compiled")
    with pytest.raises(AssertionError):
        Feeder(model_of().to(torch.bfloat16))
    Feeder(model_of())
