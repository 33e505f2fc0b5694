"""The learner over Megatron-Core, in an environment that has it: on a CPU, alone and over two ranks."""

from pathlib import Path

import pytest

from support.peers import run_peer

pytestmark = [pytest.mark.real, pytest.mark.timeout(900)]
TESTS = Path(__file__).parents[1]
PATHS = {"PYTHONPATH": f"{TESTS.parent / 'src'}:{TESTS}"}


@pytest.mark.parametrize("tests", ["_megatron_learner.py", "_megatron_rl.py"])
def test_it_does_what_the_native_learner_does(tests: str) -> None:
    said = run_peer(
        "megatron",
        "-m",
        "pytest",
        "-p",
        "no:cacheprovider",
        "-W",
        "ignore",
        Path(__file__).with_name(tests),
        seconds=800,
        **PATHS,
    )
    summary = said.splitlines()[-1]
    assert "passed" in summary
    assert "skipped" not in summary
