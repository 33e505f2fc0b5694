"""The compiled products of all small shapes against sums in fp64, under the address and undefined-behaviour sanitizers:
by each kind of instruction, of which those for bf16 are emulated (`native/emulated.h`)."""

import shutil
import subprocess
from pathlib import Path

import pytest

from rondo.ops.native.build import build, level

DRIVERS = Path(__file__).parents[1] / "native"
STRICT = ("-Wall", "-Wextra", "-Wno-psabi", "-Wno-unused-function", "-Werror", "-fopenmp")
CHECKED = (*STRICT, "-O1", "-g", "-fno-strict-aliasing")
SANITIZED = (*CHECKED, "-fsanitize=address,undefined", "-fno-sanitize-recover=all")
ARM = ("aarch64-linux-gnu-gcc", "-march=armv8-a")
ARM_CPU = "qemu-aarch64"
CASES = {
    "plain": "plain",
    "avx2": "avx2",
    "avx512": "avx512",
    "avx512 bf16, emulated": "avx2",
    "amx, emulated": "avx2",
    "amx": "amx",
}
MARCH = {"plain": "x86-64", "avx2": "x86-64-v3", "avx512": "x86-64-v4", "amx": "sapphirerapids"}
EMULATE = {"avx512 bf16, emulated": ["-DEMULATE_DOTS"], "amx, emulated": ["-DEMULATE_TILES"]}

KERNELS = list(build.SOURCES.values())

pytestmark = pytest.mark.skipif(
    not build.compiler(), reason="no C compiler here: install gcc to test what it compiles"
)
needs_arm = pytest.mark.skipif(
    not all(map(shutil.which, (ARM[0], ARM_CPU))),
    reason="no compiler for ARM here, or nothing to run it: install gcc-aarch64-linux-gnu and qemu-user",
)


@pytest.mark.parametrize("case", CASES)
def test_products_are_exact_to_rounding_and_the_same_for_any_number_of_rows(case, tmp_path):
    run_sanitized("products.c", CASES[case], tmp_path, *EMULATE.get(case, []))


@pytest.mark.parametrize("case", ["plain", "avx2", "avx512"])
def test_products_with_quantized_weights_stay_in_their_memory(case, tmp_path):
    run_sanitized("quantized_shapes.c", case, tmp_path)


def test_products_of_bytes_stay_in_their_memory(tmp_path):
    if "avx512_vnni" not in level.cpu_flags():
        pytest.skip("this CPU has no products of bytes: AVX-512 VNNI")
    run_sanitized("quantized_shapes.c", "avx512", tmp_path, "-mavx512vnni")


def run_sanitized(driver, case, tmp_path, *flags):
    if level.best() == "plain" and case != "plain":
        pytest.skip("this CPU has one level")
    if case not in level.available():
        pytest.skip(f"this CPU has no {level.NAMES[case]}")
    march = [f"-march={MARCH[case]}"] if level.best() != "plain" else []
    run(driver, [*build.compiler(), *SANITIZED, *march, *flags], tmp_path)


@needs_arm
@pytest.mark.parametrize("driver", ["products.c", "quantized_shapes.c"])
def test_products_of_an_arm_cpu(driver, tmp_path):
    """What is undefined ends in a trap: the sanitizers' own libraries do not run there."""
    command = [*ARM, *CHECKED, "-static", "-fsanitize=undefined", "-fsanitize-undefined-trap-on-error"]
    run(driver, command, tmp_path, ARM_CPU)


def run(driver, command, tmp_path, *by):
    binary = tmp_path / "products"
    headers = build.ROOT
    built = compiled([*command, f"-I{headers}", str(DRIVERS / driver), "-o", str(binary), "-lm"])
    if "cannot find -lasan" in built.stderr or "libasan" in built.stderr:
        pytest.skip("the compiler's sanitizers are not installed")
    assert built.returncode == 0, built.stderr
    done = subprocess.run([*by, str(binary)], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-4000:]


def compiled(command):
    return subprocess.run(command, capture_output=True, text=True, timeout=300)


@pytest.mark.parametrize("cpu", ["skylake-avx512", "cooperlake", "sapphirerapids", "x86-64"])
@pytest.mark.parametrize("source", KERNELS, ids=lambda path: path.stem)
def test_every_kernel_compiles_for_other_cpus(source, cpu):
    """Whatever CPU this is, without a warning."""
    if level.best() == "plain":
        pytest.skip("for x86-64 alone")
    flags = [*STRICT, f"-I{build.ROOT}", f"-march={cpu}", "-O0", "-fsyntax-only"]
    done = compiled([*build.compiler(), *flags, str(source)])
    if "bad value" in done.stderr or "unknown target CPU" in done.stderr:
        pytest.skip(f"this compiler does not know {cpu}")
    assert done.returncode == 0, done.stderr


@needs_arm
@pytest.mark.parametrize("source", KERNELS, ids=lambda path: path.stem)
def test_every_kernel_compiles_for_an_arm_cpu(source):
    done = compiled([*ARM, *STRICT, f"-I{build.ROOT}", "-O0", "-fsyntax-only", str(source)])
    assert done.returncode == 0, done.stderr
