"""For all tests and the processes they start: one thread each, since there is a worker a core, and none that spins. No
example of a property is slow: a machine may be.

Each test draws the same random numbers whatever ran before it, so that one that fails fails again by itself;
`pytest --seed 7` tries others.
"""

import os
import signal
from pathlib import Path

import rondo  # noqa: F401 threads that wait soon sleep
from rondo.base.storage.home import kernels_dir

os.environ["OMP_NUM_THREADS"] = "1"  # before torch is imported
os.environ["HF_HUB_OFFLINE"] = "1"  # before transformers is imported: no test uses the network
os.environ["HF_HUB_CACHE"] = "/nonexistent"
os.environ.setdefault("RONDO_KERNELS", str(kernels_dir()))  # compiled once, for the homes of all tests
# Each client of HTTP reads it anew, also to speak to loopback without TLS: one authority, and not a hundred.
os.environ["SSL_CERT_FILE"] = str(Path(__file__).with_name("support") / "authority.pem")

# A run in the background of a script ignores Ctrl-C, and so would the processes that it starts.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

import random

import hypothesis
import pytest
import torch

from support.waiting import scaled

SLOW = frozenset(Path(__file__).with_name("slow.txt").read_text().split())

hypothesis.settings.register_profile("any machine", deadline=None)
hypothesis.settings.load_profile("any machine")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--seed", type=int, default=0, help="of the numbers that tests draw")


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """The limit of a test is for an idle machine, and longer on a busy one."""
    if config.getoption("timeout", None) is None and "PYTEST_TIMEOUT" not in os.environ:
        config.option.timeout = scaled(float(config.getini("timeout")))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests in slow.txt, which names test files and single tests."""
    for item in items:
        file, _, test = item.nodeid.removeprefix("tests/").partition("::")
        if file in SLOW or f"{file}::{test.partition('[')[0]}" in SLOW:
            item.add_marker("slow")


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Before its fixtures too."""
    seed = item.config.getoption("--seed")
    random.seed(seed)
    torch.manual_seed(seed)
