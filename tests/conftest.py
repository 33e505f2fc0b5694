"""For all tests and the processes they start: one thread each, since there is a worker a core, and none that spins.

Each test draws the same random numbers whatever ran before it, so that one that fails fails again by itself;
`RONDO_TEST_SEED=7 pytest ...` tries others.
"""

import os

os.environ["OMP_NUM_THREADS"] = "1"  # before torch is imported

import random

import pytest
import torch

from rondo.base.threads import yield_soon

yield_soon()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    """Before its fixtures too."""
    seed = int(os.environ.get("RONDO_TEST_SEED", "0"))
    random.seed(seed)
    torch.manual_seed(seed)
