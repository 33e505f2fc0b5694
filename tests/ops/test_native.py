import os
import subprocess
import sys
from pathlib import Path

import pytest

from rondo.ops.native import build
from rondo.ops.native.ahead import KERNELS

SCRIPT = """
import logging, sys
logging.basicConfig(level=logging.INFO, stream=sys.stdout)
from rondo.ops.native.build import library
print("got", library("paged_decode") is not None)
"""


def run(home, **env) -> str:
    full = {**os.environ, "RONDO_HOME": str(home), **env}
    return subprocess.run(
        [sys.executable, "-c", SCRIPT], env=full, capture_output=True, text=True, check=True
    ).stdout


def test_without_a_compiler_the_slower_kernels_serve(tmp_path):
    assert "got False" in run(tmp_path, CC="/nowhere/cc")
    out = run(tmp_path, CC="false")
    assert "got False" in out
    assert "could not be compiled" in out
    assert "got False" in run(tmp_path, RONDO_NATIVE="0")
    assert not list((tmp_path).rglob("*.so"))
    assert not list((tmp_path).rglob("*.partial"))


def test_a_kernel_is_compiled_once(tmp_path):
    if "got True" not in run(tmp_path):
        pytest.skip("no C compiler here: install gcc to test the compiled kernel")
    (built,) = tmp_path.rglob("*.so")
    before = built.stat().st_mtime_ns
    assert "got True" in run(tmp_path, CC=os.environ.get("CC", ""))
    assert built.stat().st_mtime_ns == before


@pytest.mark.skipif(
    not build.compiler(), reason="no C compiler here: install gcc to test the compiled kernels"
)
@pytest.mark.parametrize(
    "source", sorted(Path(build.__file__).parent.glob("*.c")), ids=lambda path: path.stem
)
def test_every_kernel_compiles_where_there_is_a_compiler(source):
    """Else the slower ones would serve, and tests of compiled kernels would pass without one."""
    assert build.library(source.stem) is not None


def test_all_kernels_are_compiled_ahead():
    assert set(KERNELS) == {path.stem for path in Path(build.__file__).parent.glob("*.c")}
