"""Keys: who is let in, who is not and why; and how much a key may ask for."""

import sqlite3
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given

from rondo.base.errors import ConfigError, Forbidden, NotFound, Unauthorized
from rondo.control.keys import Key, Keys, Rights, Usage
from rondo.control.limits import Limits, RateLimited
from rondo.control.store import Store


@pytest.fixture
def keys(tmp_path: Path) -> Iterator[Keys]:
    store = Store(tmp_path / "rondo.db")
    yield Keys(store)
    store.close()


def test_a_key_is_found_by_its_text_alone_and_the_file_does_not_have_it(keys: Keys) -> None:
    rights = Rights("user", ("inference",), ("small", "large"), 10, 1000, 5000, time.time() + 60)
    key, text = keys.make("team a", rights)
    assert keys.find(text) == key
    assert keys.all() == [key]
    written = b"".join(file.read_bytes() for file in keys.store.path.parent.iterdir())
    assert key.id.encode() in written
    assert text[len("rk-") + 12 + 1 :].encode() not in written


@pytest.mark.parametrize("text", [None, "", "x", "rk-", "rk-000000000000-" + "a" * 43, "Bearer", "rk-\x00"])
def test_what_is_no_key_is_not_let_in(keys: Keys, text: str | None) -> None:
    keys.make("other")
    with pytest.raises(Unauthorized):
        keys.find(text)


def test_another_secret_of_the_same_key_is_not_let_in(keys: Keys) -> None:
    (_, one), (_, two) = keys.make("one"), keys.make("two")
    mixed = one[: len("rk-") + 12 + 1] + two[len("rk-") + 12 + 1 :]
    with pytest.raises(Unauthorized, match="Incorrect API key"):
        keys.find(mixed)


def test_revoked_and_expired_keys_are_told_so(keys: Keys) -> None:
    key, text = keys.make("gone")
    assert keys.revoke(key.id).revoked is not None
    first = keys.revoke(key.id).revoked
    assert keys.revoke(key.id).revoked == first, "twice is once"
    with pytest.raises(Unauthorized, match="'gone' has been revoked") as caught:
        keys.find(text)
    assert caught.value.code == "revoked_api_key"
    _, old = keys.make("old", Rights(expires=time.time() - 1))
    with pytest.raises(Unauthorized, match="'old' has run out"):
        keys.find(old)
    with pytest.raises(NotFound, match="no key 'nobody'"):
        keys.revoke("nobody")


def test_the_first_start_makes_an_admins_key_and_the_next_none(keys: Keys) -> None:
    text = keys.make_first()
    assert keys.find(text).rights.role == "admin"
    assert keys.make_first() is None


def test_scopes_and_models() -> None:
    user = Key("1", "u", Rights("user", ("inference",), ("small",)), 0.0)
    user.may("inference")
    user.may_use("small")
    with pytest.raises(Forbidden, match="may not use files"):
        user.may("files")
    with pytest.raises(Forbidden, match="may not use the model 'large', only small") as caught:
        user.may_use("large")
    assert caught.value.param == "model"
    with pytest.raises(Forbidden):
        Key("2", "w", Rights("worker"), 0.0).may("inference")
    admin = Key("3", "a", Rights("admin", ()), 0.0)
    admin.may("jobs")
    admin.may_use("any")


WRONG: list[tuple[str, dict[str, Any], str]] = [
    ("", {}, "name"),
    ("a\nb", {}, "name"),
    ("x", {"role": "root"}, "role"),
    ("x", {"scopes": ("everything",)}, "scopes"),
    ("x", {"requests_per_minute": 0}, "requests_per_minute"),
    ("x", {"tokens_per_day": -1}, "tokens_per_day"),
    ("x", {"models": ("a,b",)}, "models"),
]


@pytest.mark.parametrize(("name", "rights", "param"), WRONG)
def test_wrong_rights_are_refused_by_name(keys: Keys, name: str, rights: dict[str, Any], param: str) -> None:
    with pytest.raises(ConfigError) as caught:
        keys.make(name, Rights(**rights))
    assert caught.value.param == param
    assert keys.all() == []


def test_usage_adds_up_by_day_and_model(keys: Keys, monkeypatch: pytest.MonkeyPatch) -> None:
    for day, model in ((1, "a"), (1, "a"), (1, "b"), (2, "a")):
        monkeypatch.setattr(time, "gmtime", lambda day=day: time.struct_time((2026, 1, day, *[0] * 6)))
        keys.used("k", model, 1, 10, 5)
    keys.used("other", "a", 1, 1, 1)
    keys.store.write(lambda db: None)
    assert keys.usage("k") == [
        Usage("2026-01-01", "a", 2, 20, 10),
        Usage("2026-01-01", "b", 1, 10, 5),
        Usage("2026-01-02", "a", 1, 10, 5),
    ]
    assert keys.usage("k", since="2026-01-02") == [Usage("2026-01-02", "a", 1, 10, 5)]


def test_a_store_that_fails_lets_nobody_in(keys: Keys) -> None:
    _, text = keys.make("one")
    keys.store.write(lambda db: db.execute("DROP TABLE keys"))
    with pytest.raises(sqlite3.OperationalError):
        keys.find(text)


def limited(**rights: int) -> Key:
    return Key("k", "k", Rights(**rights), 0.0)  # type: ignore[arg-type]


def test_a_minutes_requests_and_no_more() -> None:
    now = [0.0]
    limits, key = Limits(lambda: now[0]), limited(requests_per_minute=2)
    assert limits.take(key, 5) == {
        "x-ratelimit-limit-requests": "2",
        "x-ratelimit-remaining-requests": "1",
        "x-ratelimit-reset-requests": "30.000s",
    }
    limits.take(key, 5)
    with pytest.raises(
        RateLimited, match=r"on requests per min: limit 2, left 0.*try again in 30.000s"
    ) as caught:
        limits.take(key, 5)
    assert caught.value.after == 30
    now[0] = 30.0
    limits.take(key, 5)
    assert limits.take(limited(requests_per_minute=9), 0)["x-ratelimit-remaining-requests"] == "8", (
        "new rights"
    )


def test_tokens_are_taken_as_thought_and_settled_as_they_were() -> None:
    now = [0.0]
    limits, key = Limits(lambda: now[0]), limited(tokens_per_minute=100)
    limits.take(key, 60)
    with pytest.raises(RateLimited, match=r"requested 60"):
        limits.take(key, 60)
    limits.settle(key, 60, used=10)
    limits.take(key, 60)
    limits.settle(key, 60, used=160)
    assert limits.headers(key)["x-ratelimit-remaining-tokens"] == "0"
    now[0] = 60.0
    assert limits.headers(key)["x-ratelimit-remaining-tokens"] == "30", "it was overdrawn by 70"
    now[0] = 600.0
    limits.take(key, 1000)  # larger than a minute's worth: with a full bucket only
    with pytest.raises(RateLimited):
        limits.take(key, 1)


def test_without_limits_nothing_is_said() -> None:
    assert Limits().take(limited(), 10**9) == {}


@given(st.lists(st.tuples(st.floats(0, 100), st.integers(0, 50)), max_size=30))
def test_no_minute_gives_more_than_twice_its_worth(asked: list[tuple[float, int]]) -> None:
    """A full bucket, and what flows in meanwhile."""
    now = [0.0]
    limits, key = Limits(lambda: now[0]), limited(tokens_per_minute=50)
    granted = []
    for wait, tokens in asked:
        now[0] += wait
        try:
            limits.take(key, tokens)
        except RateLimited as refused:
            now[0] += refused.after * (1 + 1e-9) + 1e-9
            limits.take(key, tokens)  # as it was told
        granted.append((now[0], tokens))
    for at, _ in granted:
        assert sum(tokens for when, tokens in granted if at <= when < at + 60) <= 100 + 1e-6
