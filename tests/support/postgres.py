"""A real PostgreSQL on this machine: a cluster in a temporary folder, reachable only by a socket in that folder."""

from __future__ import annotations

import contextlib
import itertools
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import sqlalchemy as sa

from support.waiting import wait_until

DEBIAN = sorted(Path("/usr/lib/postgresql").glob("*/bin"))
"""Debian keeps the server's programs off the PATH."""
TEMPLATE = "rondo_template"
SETTINGS = {
    "listen_addresses": "",
    "fsync": "off",
    "max_connections": "60",
    "shared_buffers": "64MB",
    "deadlock_timeout": "100ms",
}


class Cluster:
    def __init__(self, folder: Path, user: str | None, settings: dict[str, str]) -> None:
        self.folder, self._user, self._settings = folder, user, settings
        self._names = itertools.count()
        self._process: subprocess.Popen[bytes] | None = None
        self._call(
            "initdb", "--username=rondo", "--auth=trust", "--no-sync", "--pgdata", str(folder / "data")
        )

    def url(self, database: str) -> str:
        return f"postgresql://rondo@/{database}?host={self.folder}"

    def start(self) -> None:
        settings = [f"--{name}={value}" for name, value in self._settings.items()]
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [_program("postgres"), "-D", self.folder / "data", "-k", self.folder, *settings],
                stdout=log,
                stderr=log,
                user=self._user,
                cwd=self.folder,
            )
        ready = [_program("pg_isready"), "--quiet", "--host", str(self.folder)]
        wait_until(lambda: subprocess.run(ready, check=False).returncode == 0)

    def stop(self, how: signal.Signals = signal.SIGINT) -> None:
        """SIGINT rolls back each session (a fast shutdown), SIGQUIT leaves recovery to the next start (a crash)."""
        if self._process is not None:
            self._process.send_signal(how)
            self._process.wait(60)
            self._process = None

    def database(self, *, tables: bool = True) -> str:
        """The URL of a new database, with the newest tables or without any."""
        name = f"rondo_{next(self._names)}"
        self.execute(f"CREATE DATABASE {name} TEMPLATE {self._template() if tables else 'template0'}")
        return self.url(name)

    def execute(self, text: str) -> None:
        made = sa.create_engine(self.url("postgres").replace("postgresql:", "postgresql+psycopg:"))
        with made.connect() as db:
            db.execution_options(isolation_level="AUTOCOMMIT").execute(sa.text(text))
        made.dispose()

    def _template(self) -> str:
        """A database with the newest tables, since copying one is quicker than migrating each."""
        if not (self.folder / "template").exists():
            from rondo.control.store.store import Store

            self.execute(f"CREATE DATABASE {TEMPLATE}")
            Store(self.url(TEMPLATE)).close()
            (self.folder / "template").touch()
        return TEMPLATE

    def _call(self, program: str, *arguments: str) -> None:
        subprocess.run(
            [_program(program), *arguments],
            check=True,
            capture_output=True,
            timeout=120,
            user=self._user,
            cwd=self.folder,
        )


@contextlib.contextmanager
def postgres(**settings: str) -> Iterator[Cluster]:
    """PostgreSQL refuses to run as root: root starts it as the user `postgres`."""
    user = "postgres" if os.getuid() == 0 else None
    folder = Path(tempfile.mkdtemp(prefix="rondo-pg-"))
    try:
        if user is not None:
            shutil.chown(folder, user)
        cluster = Cluster(folder, user, SETTINGS | settings)
        cluster.start()
        try:
            yield cluster
        finally:
            cluster.stop(signal.SIGQUIT)  # without a last checkpoint
    finally:
        shutil.rmtree(folder)


def installed() -> bool:
    return _found("initdb") is not None


def _found(name: str) -> str | None:
    return shutil.which(name, path=os.pathsep.join([os.environ["PATH"], *map(str, DEBIAN)]))


def _program(name: str) -> str:
    found = _found(name)
    assert found, f"no {name} on the PATH; `make test-real` installs it (apt-get install postgresql)"
    return found
