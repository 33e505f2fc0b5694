"""The suite of directories, for the one of a process; tests/real has etcd."""

import pytest

from rondo.weights.directory import Directory
from support.directories import DirectorySuite, Make


@pytest.fixture
def make() -> Make:
    shared = Directory()
    return lambda lease: Directory(lease, shared=shared)


class TestLocal(DirectorySuite):
    pass
