"""How long threads that wait keep a core to themselves."""

import os
import subprocess
import sys

import pytest

from rondo.base.threads import SPINS


@pytest.mark.parametrize(("said", "counts"), [(None, SPINS), ("7", "7")])
def test_whoever_imports_it_has_threads_that_give_way_unless_they_are_told_otherwise(
    said: str | None, counts: str
) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "GOMP_SPINCOUNT"}
    if said is not None:
        environment["GOMP_SPINCOUNT"] = said
    program = "import os, rondo; print(os.environ['GOMP_SPINCOUNT'])"
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, timeout=60
    )
    assert done.stdout.strip() == counts, done.stderr
