"""Revisions of the tables: created, compared with `tables.py`, upgraded in one transaction, refused when newer."""

import subprocess
import sys
import threading
from pathlib import Path

import pytest
import sqlalchemy as sa
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory

from rondo.base.errors import Conflict
from rondo.control.migrations import HEAD
from rondo.control.store import migrate
from rondo.control.store.store import Store
from rondo.control.tables import metadata

STEP = """
import sqlalchemy as sa
from alembic import op

revision, down_revision = {number!r}, {before!r}


def upgrade():
    op.create_table("step_{number}", sa.Column("id", sa.Integer, primary_key=True))
    {then}
"""


def test_the_steps_create_the_tables_that_the_code_uses(store: Store) -> None:
    def differences(db: sa.Connection) -> list[object]:
        return list(compare_metadata(MigrationContext.configure(db, opts={"compare_type": True}), metadata))

    assert store.read(differences).result() == []


def test_the_newest_step_is_the_one_that_the_code_expects() -> None:
    script = ScriptDirectory(str(migrate.FOLDER), version_locations=[str(each) for each in migrate.VERSIONS])
    assert script.get_heads() == [HEAD]
    assert all(step.revision.isdigit() and len(step.revision) == 4 for step in script.walk_revisions())


def test_a_store_of_a_newer_version_is_refused_and_left_alone(place: Path | str) -> None:
    store = Store(place)
    store.write(lambda db: db.execute(sa.text("UPDATE alembic_version SET version_num = '9999'"))).result()
    store.close()
    with pytest.raises(Conflict, match=r"newer version of Rondo.*9999.*Install that version, or use another"):
        Store(place)


def test_tables_of_another_program_are_refused_and_left_alone(
    place: Path | str, request: pytest.FixtureRequest
) -> None:
    """Among them the files of versions before Alembic."""
    if isinstance(place, str):
        place = request.getfixturevalue("cluster").database(tables=False)
    url = (
        f"sqlite:///{place}"
        if isinstance(place, Path)
        else place.replace("postgresql:", "postgresql+psycopg:")
    )
    other = sa.create_engine(url)
    with other.begin() as db:
        db.execute(sa.text("CREATE TABLE groups (x INTEGER)"))
    with pytest.raises(
        Conflict, match=r"has a table 'groups' that Rondo did not create: use an empty database"
    ):
        Store(place)
    assert sa.inspect(other).get_table_names() == ["groups"]
    other.dispose()


def test_a_step_that_fails_leaves_the_revision_before(
    place: Path | str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Store(place).close()
    more = tmp_path / "more"
    more.mkdir()
    (more / "a.py").write_text(STEP.format(number="9001", before=HEAD, then=""))
    (more / "b.py").write_text(STEP.format(number="9002", before="9001", then="op.execute('no SQL')"))
    monkeypatch.setattr(migrate, "VERSIONS", (*migrate.VERSIONS, more))
    monkeypatch.setattr(migrate.migrations, "HEAD", "9002")
    with pytest.raises(sa.exc.DBAPIError):
        Store(place)
    monkeypatch.setattr(migrate.migrations, "HEAD", HEAD)
    store = Store(place)
    tables = store.read(lambda db: sa.inspect(db).get_table_names()).result()
    store.close()
    assert not [name for name in tables if name.startswith("step_")], "all steps or none"
    (more / "b.py").write_text(STEP.format(number="9002", before="9001", then=""))
    monkeypatch.setattr(migrate.migrations, "HEAD", "9002")
    store = Store(place)
    assert store.database.before == HEAD
    assert "step_9002" in store.read(lambda db: sa.inspect(db).get_table_names()).result()
    store.close()


def test_processes_that_open_an_empty_store_at_once_migrate_it_once(
    place: Path | str, request: pytest.FixtureRequest
) -> None:
    if isinstance(place, str):
        place = request.getfixturevalue("cluster").database(tables=False)
    opened, failures = list[Store](), list[BaseException]()

    def open_it() -> None:
        try:
            opened.append(Store(place))
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=open_it) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    assert sorted(str(store.database.before) for store in opened) == [HEAD] * 3 + ["None"]
    for store in opened:
        store.close()


def test_a_current_store_opens_without_alembic(tmp_path: Path) -> None:
    Store(tmp_path / "rondo.db").close()
    code = (
        "import sys; from rondo.control.store.store import Store; Store(sys.argv[1]).close(); "
        "print('alembic' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, tmp_path / "rondo.db"], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "False"
