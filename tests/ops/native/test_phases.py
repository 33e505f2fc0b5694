"""Threads that take shares of phases one by one (`phases.h`), watched by the compiler's sanitizers."""

import subprocess
from pathlib import Path

import pytest

from rondo.ops.native.build import build

DRIVER = Path(__file__).parents[1] / "native" / "phases.c"
STRICT = ("-Wall", "-Wextra", "-Wno-psabi", "-Wno-unused-function", "-Werror", "-pthread", "-O1", "-g")

pytestmark = pytest.mark.skipif(
    not build.compiler(), reason="no C compiler here: install gcc to test what it compiles"
)


@pytest.mark.parametrize("sleeping", ["futex", "yield"])
@pytest.mark.parametrize("sanitizer", ["thread", "address,undefined"])
def test_each_share_is_taken_once_when_the_phase_before_is_whole(sanitizer, sleeping, tmp_path):
    binary, headers = tmp_path / "phases", build.ROOT
    flags = [*STRICT, f"-fsanitize={sanitizer}", *(["-U__linux__"] if sleeping == "yield" else [])]
    command = [*build.compiler(), *flags, f"-I{headers}", str(DRIVER), "-o", str(binary), "-lm"]
    built = subprocess.run(command, capture_output=True, text=True, timeout=300)
    if "cannot find" in built.stderr:
        pytest.skip("the compiler's sanitizers are not installed")
    assert built.returncode == 0, built.stderr
    done = subprocess.run([binary], capture_output=True, text=True, timeout=300)
    if "unexpected memory mapping" in done.stderr:
        pytest.skip("this kernel puts memory where the thread sanitizer cannot have it: vm.mmap_rnd_bits")
    assert done.returncode == 0, done.stdout + done.stderr[-4000:]
