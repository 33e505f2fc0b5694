"""Kernels compiled for fewer instructions than this CPU has: right all the same, and nothing else is taken for them."""

import subprocess
import sys

import pytest
import torch

from rondo.base.errors import ConfigError
from rondo.ops.native.build import ahead, build, level
from rondo.ops.native.decoder.layers import DenseDecoder, Ends

needs_compiler = pytest.mark.skipif(
    not build.compiler(), reason="no C compiler here: install gcc to test the compiled kernels"
)


def cpu(monkeypatch, flags, machine="x86_64", asked=""):
    monkeypatch.setattr(level, "cpu_flags", lambda: frozenset(flags.split()))
    monkeypatch.setattr(level.platform, "machine", lambda: machine)
    monkeypatch.setenv("RONDO_CPU", asked)


HASWELL = "avx avx2 fma f16c bmi1 bmi2"
SKYLAKE = f"{HASWELL} avx512f avx512bw avx512dq avx512vl"
SAPPHIRE = f"{SKYLAKE} avx512_bf16 amx_tile amx_bf16 amx_int8"


@pytest.mark.parametrize(
    ("flags", "levels"),
    [
        (SAPPHIRE, ["amx", "avx512", "avx2", "plain"]),
        (SKYLAKE, ["avx512", "avx2", "plain"]),
        (HASWELL, ["avx2", "plain"]),
        ("sse2 avx", ["plain"]),
        ("", ["plain"]),
    ],
)
def test_the_best_a_cpu_has_is_taken(monkeypatch, flags, levels):
    cpu(monkeypatch, flags)
    assert level.available() == levels
    assert level.level() == levels[0]
    assert level.level_flags() == ("-march=native",)


def test_what_is_no_x86_has_one_level(monkeypatch):
    cpu(monkeypatch, "asimd bf16", machine="aarch64")
    assert level.available() == ["plain"]
    assert level.level_flags() == ("-march=native",)


@pytest.mark.parametrize(
    ("asked", "flag"),
    [("avx512", "-mno-amx-bf16"), ("avx2", "-march=x86-64-v3"), ("plain", "-march=x86-64")],
)
def test_fewer_instructions_can_be_asked_for(monkeypatch, asked, flag):
    cpu(monkeypatch, SAPPHIRE, asked=asked)
    assert level.level() == asked
    assert flag in level.level_flags()


@pytest.mark.parametrize(("asked", "said"), [("avx512", "Available: avx2, plain"), ("sse9", "is no level")])
def test_a_level_that_cannot_be_is_an_error(monkeypatch, asked, said):
    cpu(monkeypatch, HASWELL, asked=asked)
    with pytest.raises(ConfigError, match=said):
        level.level()


@pytest.fixture
def at(monkeypatch):
    """Takes the kernels of a level, as a process started with it does."""

    def take(name):
        monkeypatch.setenv("RONDO_CPU", name)
        build.library.cache_clear()

    yield take
    build.library.cache_clear()


def product(x, weight):
    """By the compiled layers: the head without its norm's work."""
    ends = Ends(weight, None, torch.ones(weight.shape[1], dtype=weight.dtype), weight)
    return DenseDecoder([], ends, 0.0, 0.0).head(x)


@needs_compiler
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
@pytest.mark.parametrize("name", level.available())
def test_products_of_every_level_here(at, name, dtype):
    """Against sums in fp64, over all ways the rows are cut, whose results are the same to the bit."""
    at(name)
    assert build.library("layers")._name.rpartition("/")[2].startswith(f"layers-{name}-")
    torch.manual_seed(0)
    for width, inputs in ((16, 16), (35, 48), (99, 272), (48, 1040)):
        x, weight = torch.randn(41, inputs, dtype=dtype), torch.randn(width, inputs, dtype=dtype)
        normed = torch.nn.functional.rms_norm(x.float(), (inputs,), eps=0.0).to(dtype).double()
        exact = normed @ weight.double().T
        # Each sum of a chain is rounded. In bf16 a number of x may be its neighbour, and the result is rounded.
        unit = 2.0**-23 * inputs + (2.0**-7 if dtype == torch.bfloat16 else 0)
        bound = unit * (normed.abs() @ weight.double().abs().T)
        whole = product(x, weight)
        assert ((whole.double() - exact).abs() <= bound).all()
        for rows in (1, 2, 3, 7, 8, 9, 16, 17, 33):
            assert torch.equal(product(x[:rows], weight), whole[:rows])


@needs_compiler
def test_compiling_ahead_says_what_it_made_and_what_is_lost():
    def said(**environment):
        command = [sys.executable, "-m", "rondo.ops.native"]
        done = subprocess.run(
            command, env=build.os.environ | environment, capture_output=True, text=True, timeout=300
        )
        return done.returncode, done.stdout + done.stderr

    assert said() == (0, f"kernels: {ahead.runs('fp32')}\n")
    code, text = said(RONDO_NATIVE="0")
    assert code == 0
    assert "plain torch runs in place of every kernel" in text
    code, text = said(RONDO_CPU="sse9")
    assert code == 1
    assert text.startswith("error: RONDO_CPU=sse9 is no level.")
