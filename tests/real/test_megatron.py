"""The learner over Megatron-Core, in an environment that has it: on a CPU, alone and over two ranks."""

from pathlib import Path

import pytest

from support.peers import run_peer

pytestmark = pytest.mark.real
TESTS = Path(__file__).parents[1]
PATHS = {"PYTHONPATH": f"{TESTS.parent / 'src'}:{TESTS}"}


def test_it_does_what_the_native_learner_does() -> None:
    tests = Path(__file__).with_name("_megatron_learner.py")
    said = run_peer("megatron", "-m", "pytest", "-p", "no:cacheprovider", "-W", "ignore", tests, **PATHS)
    summary = said.splitlines()[-1]
    assert "passed" in summary
    assert "skipped" not in summary
