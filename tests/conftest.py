"""For all tests and the processes they start: one thread each, since there is a worker a core, and none that spins.

Each test draws the same random numbers whatever ran before it, so that one that fails fails again by itself;
`pytest --seed 7` tries others.
"""

import os

os.environ["OMP_NUM_THREADS"] = "1"  # before torch is imported

import random

import pytest
import torch

from rondo.base.threads import yield_soon

yield_soon()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--seed", type=int, default=0, help="of the numbers that tests draw")


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Before its fixtures too."""
    seed = item.config.getoption("--seed")
    random.seed(seed)
    torch.manual_seed(seed)
