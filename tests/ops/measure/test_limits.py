"""What the machine gives: by the instructions that products have, all of them made."""

from pathlib import Path

import pytest
import torch

from rondo.ops.measure import limits as made
from rondo.ops.measure.limits import HardwareLimits, measure_limits
from rondo.ops.native.build import ahead, build, level
from rondo.ops.native.gemm.registers import KINDS, multiply

needs_compiler = pytest.mark.skipif(
    not build.compiler(), reason="no C compiler here: install gcc to measure by its instructions"
)
HEADER = Path(__file__).parents[1] / "native" / "emulated.h"
EMULATED = {"AVX-512 BF16": "-DEMULATE_DOTS", "AMX": "-DEMULATE_TILES"}


@pytest.fixture
def compiled_for(monkeypatch):
    """Takes what is compiled for a level, as a process started with it does; or for instructions that are emulated."""

    def take(name):
        monkeypatch.setenv("RONDO_CPU", "avx2" if name in EMULATED else name)
        if name in EMULATED:
            # Not optimized: half a minute less to compile.
            flags = [*build.FLAGS, "-O0", "-include", str(HEADER), EMULATED[name]]
            monkeypatch.setattr(build, "FLAGS", flags)
        build.library.cache_clear()

    yield take
    build.library.cache_clear()


def test_the_limit_is_what_takes_longer():
    limits = HardwareLimits(read=100.0, flops={"fp32": 10.0, "bf16": 1.0, "int8": 40.0})
    assert limits.seconds(1000.0, 1.0, "fp32") == 10
    assert limits.seconds(1.0, 1000.0, "fp32") == 100
    assert limits.seconds(1.0, 1000.0, "int8") == 25
    for arithmetic in ("bf16", "int16"):  # which floats are faster than, or where nothing else is known
        assert limits.seconds(1.0, 1000.0, arithmetic) == 100


@needs_compiler
@pytest.mark.parametrize("name", [*level.available(), *EMULATED])
def test_what_is_counted_is_made(compiled_for, name):
    """Products are of ones: a lane has as many as were added to it."""
    if name in EMULATED and "avx2" not in level.available():
        pytest.skip("emulated for a CPU with AVX2")
    compiled_for(name)
    for kind in KINDS:
        done, more = multiply(kind, 3, 1), multiply(kind, 30, 2)
        assert more.products == 20 * done.products > 0
        assert torch.equal(more.lanes, 10 * done.lanes.expand(2)), "each thread does as much"
        lanes = done.products / float(done.lanes)
        assert lanes in (4, 8, 16, *([256] if kind == "bf16" else []))
        assert more.seconds.isfinite().all()


@needs_compiler
@pytest.mark.parametrize("name", [*level.available(), *EMULATED])
def test_bf16_is_multiplied_as_by_the_kernels(compiled_for, name):
    if name in EMULATED and "avx2" not in level.available():
        pytest.skip("emulated for a CPU with AVX2")
    compiled_for(name)
    of_floats = multiply("fp32", 1, 1).products == multiply("bf16", 1, 1).products
    assert of_floats == (not ahead.multiplies_bf16())


@needs_compiler
def test_there_is_a_limit_for_each_kind_of_arithmetic():
    limits = measure_limits(0.05)
    assert limits.read > 0
    assert list(limits.flops) == list(KINDS)
    assert all(0 < rate < float("inf") for rate in limits.flops.values())


def test_without_a_compiler_it_is_torchs_product(monkeypatch):
    monkeypatch.setattr(made, "library", lambda name: None)
    monkeypatch.setattr(made, "multiply", None)
    limits = measure_limits(0.05)
    assert list(limits.flops) == ["fp32", "bf16"]
    assert all(rate > 0 for rate in limits.flops.values())


def test_where_torchs_bf16_serves_it_is_the_limit(monkeypatch):
    asked = []
    monkeypatch.setattr(made, "takes_bf16", lambda: False)
    monkeypatch.setattr(made, "_product_rate", lambda dtype, budget: asked.append(dtype) or 1.0)
    assert measure_limits(0.02).flops["bf16"] == 1.0
    assert asked[-1] == torch.bfloat16
