"""home, ids, units, errors."""

from pathlib import Path

import pytest

from rondo.base.errors import MissingExtra, NotFound, RondoError
from rondo.base.ids import new_id
from rondo.base.storage.home import home, jobs_dir, models_dir
from rondo.base.units import human_bytes, human_count, human_seconds, parse_count


def test_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("RONDO_HOME", str(tmp_path / "x"))
    assert home() == tmp_path / "x"
    assert (models_dir(), jobs_dir()) == (tmp_path / "x/models", tmp_path / "x/jobs")
    assert not home().exists()
    for unset in ("", "~/.rondo"):
        monkeypatch.setenv("RONDO_HOME", unset)
        assert home() == Path.home() / ".rondo"


def test_relative_home_is_made_absolute(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("RONDO_HOME", "here")
    assert home() == Path.cwd() / "here"


def test_ids_differ_and_keep_their_prefix():
    ids = {new_id("chatcmpl") for _ in range(1000)}
    assert len(ids) == 1000
    assert all(name.startswith("chatcmpl-") for name in ids)


@pytest.mark.parametrize(
    ("shown", "expected"),
    [
        (human_bytes(0), "0 B"),
        (human_bytes(1536), "1.5 KB"),
        (human_bytes(2**40 * 5000), "5000.0 TB"),
        (human_count(999), "999"),
        (human_count(596_049_920), "596.05M"),
        (human_seconds(0.42), "0.4s"),
        (human_seconds(75.2), "1m15s"),
        (human_seconds(7260), "2h01m"),
    ],
)
def test_units(shown: str, expected: str):
    assert shown == expected


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("4096", 4096),
        ("4k", 4096),
        ("4K", 4096),
        ("1.5m", 3 << 19),
        ("64MB", 64 << 20),
        ("2 ", 2),
        ("1GiB", 1 << 30),
    ],
)
def test_counts_have_suffixes_in_either_case(text: str, number: int):
    assert parse_count(text) == parse_count(text.swapcase()) == number


@pytest.mark.parametrize("text", ["", "k", "4x", "4kk", "1.5", "-", "4 k m"])
def test_other_texts_are_no_counts(text: str):
    with pytest.raises(ValueError, match="invalid literal"):
        parse_count(text)


def test_errors_carry_what_clients_need():
    error = NotFound("no such model", param="model", code="model_not_found")
    assert (str(error), error.param, error.code, error.status) == (
        "no such model",
        "model",
        "model_not_found",
        404,
    )
    assert isinstance(error, RondoError)
    assert str(MissingExtra("vllm", "vllm")).endswith("pip install 'rondo-lab[vllm]'")
