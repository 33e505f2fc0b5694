"""`rondo keys`: rights of keys on the command line."""

from pathlib import Path

import pytest

from rondo.base.storage.home import admin_key_file
from rondo.cli.platform.remote import admin_key_place
from rondo.cli.service import keys


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("RONDO_HOME", str(tmp_path))
    monkeypatch.delenv("RONDO_STORE_URL", raising=False)
    monkeypatch.setenv("COLUMNS", "200")
    return tmp_path


def test_the_list_shows_scopes_and_service_tier(capsys: pytest.CaptureFixture[str]) -> None:
    keys.run(["create", "ann", "--scopes", "inference,files", "--service-tier", "flex"])
    keys.run(["create", "root", "--role", "admin"])
    capsys.readouterr()
    keys.run(["list"])
    head, ann, root = capsys.readouterr().out.splitlines()
    assert head.split() == ["ID", "NAME", "ROLE", "STATE", "SCOPES", "MODELS", "TIER", "LIMITS"]
    assert ann.split()[1:] == ["ann", "user", "valid", "inference,files", "all", "flex", "none"]
    assert root.split()[1:] == ["root", "admin", "valid", "all", "all", "priority", "none"]


def test_the_place_of_the_admin_key_is_stated_if_it_exists() -> None:
    assert "rondo keys create NAME --role admin" in admin_key_place()
    admin_key_file().write_text("rk-")
    assert admin_key_place() == str(admin_key_file())
