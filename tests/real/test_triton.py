"""Triton's kernels, where there is no CUDA device: interpreted on the CPU, and compiled for cards that are not here."""

from pathlib import Path

import pytest

from support.peers import run_peer

pytestmark = [pytest.mark.real, pytest.mark.timeout(900)]
TESTS = Path(__file__).parents[1]
SOURCES = {"PYTHONPATH": str(TESTS.parent / "src")}


def test_interpreted_they_are_the_references_and_none_is_skipped() -> None:
    files = TESTS / "ops/triton/test_triton.py", TESTS / "engine/runner/test_triton_engine.py"
    interpreted = {"TRITON_INTERPRET": "1", "RONDO_NATIVE": "0"}
    options = "-v", "-p", "no:cacheprovider", "-W", "ignore"
    said = run_peer("triton", "-m", "pytest", *options, *files, seconds=800, **SOURCES, **interpreted)
    summary = said.splitlines()[-1]
    assert "passed" in summary
    assert "skipped" not in summary


@pytest.mark.parametrize("capability", [80, 90])
def test_they_compile(capability: int) -> None:
    said = run_peer(
        "triton", Path(__file__).with_name("_triton_compile.py"), capability, seconds=800, **SOURCES
    )
    assert f"compiled for {capability}" in said
