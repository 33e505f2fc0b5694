import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from rondo.control.store.store import Store
from support.postgres import Cluster, postgres
from support.stores import new_store


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    with postgres() as started:
        yield started


@pytest.fixture
def memory() -> Iterator[Path]:
    """A folder in memory where there is one: a sync costs nothing there."""
    with tempfile.TemporaryDirectory(dir="/dev/shm" if Path("/dev/shm").is_dir() else None) as folder:
        yield Path(folder)


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.real)])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Path | str:
    """An empty database of each kind."""
    if request.param == "sqlite":
        return tmp_path / "rondo.db"
    cluster: Cluster = request.getfixturevalue("cluster")
    return cluster.database()


@pytest.fixture
def store(place: Path | str) -> Iterator[Store]:
    made = new_store(place)
    yield made
    made.close()
