import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from control.jobs.running import PROGRAM
from rondo.control.jobs.book import JobBook
from rondo.control.jobs.launchers.local import LocalLauncher
from rondo.control.jobs.launchers.members import kill_members
from rondo.control.store.store import Store
from rondo.jobs.spec import JobSpec


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RONDO_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("RONDO_STORE_URL", "postgresql://hidden")


@pytest.fixture
def launcher(tmp_path: Path) -> Iterator[LocalLauncher]:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)

    def command(spec: JobSpec) -> list[str]:
        return [sys.executable, "-S", str(program), spec.settings["data"], spec.settings["model"]]

    yield LocalLauncher(slots=2, command=command)
    for folder in (tmp_path / "home" / "runs").glob("*/*"):
        kill_members(folder.parent.name, int(folder.name))


@pytest.fixture
def book(store: Store) -> JobBook:
    return JobBook(store)
