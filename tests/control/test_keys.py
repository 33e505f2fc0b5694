"""Keys: who is let in, who is not and why; and how much a key may ask for."""

import threading
import time
from typing import Any

import hypothesis.strategies as st
import pytest
import sqlalchemy as sa
from hypothesis import given

from rondo.base.errors import ConfigError, Forbidden, NotFound, Unauthorized
from rondo.control import usage as of_usage
from rondo.control.key import Key, Rights
from rondo.control.keys import Keys
from rondo.control.limits import Limits, RateLimited
from rondo.control.store.clock import microseconds
from rondo.control.store.store import Store
from rondo.control.usage import SETTLED_SECONDS, Usage, UsageLog
from support.waiting import wait_until


@pytest.fixture
def keys(store: Store) -> Keys:
    return Keys(store)


def test_a_key_is_found_by_its_text_alone_and_the_file_does_not_have_it(keys: Keys) -> None:
    rights = Rights("user", ("inference",), ("small", "large"), 10, 1000, 5000, microseconds() + 60_000_000)
    key, text = keys.make("team a", rights).result()
    assert keys.find(text).result() == key
    assert keys.all().result() == [key]
    stored = keys.store.read(lambda db: str(db.execute(sa.text("SELECT * FROM keys")).all())).result()
    assert key.id in stored
    assert text[len("rk-") + 12 + 1 :] not in stored


@pytest.mark.parametrize("text", [None, "", "x", "rk-", "rk-000000000000-" + "a" * 43, "Bearer", "rk-\x00"])
def test_what_is_no_key_is_not_let_in(keys: Keys, text: str | None) -> None:
    keys.make("other").result()
    with pytest.raises(Unauthorized):
        keys.find(text).result()


def test_another_secret_of_the_same_key_is_not_let_in(keys: Keys) -> None:
    (_, one), (_, two) = keys.make("one").result(), keys.make("two").result()
    mixed = one[: len("rk-") + 12 + 1] + two[len("rk-") + 12 + 1 :]
    with pytest.raises(Unauthorized, match="Incorrect API key"):
        keys.find(mixed).result()


def test_revoked_and_expired_keys_are_told_so(keys: Keys) -> None:
    key, text = keys.make("gone").result()
    assert keys.revoke(key.id).result().revoked is not None
    first = keys.revoke(key.id).result().revoked
    assert keys.revoke(key.id).result().revoked == first, "twice is once"
    with pytest.raises(Unauthorized, match="'gone' has been revoked") as caught:
        keys.find(text).result()
    assert caught.value.code == "revoked_api_key"
    _, old = keys.make("old", Rights(expires=microseconds() - 1)).result()
    with pytest.raises(Unauthorized, match="'old' has expired"):
        keys.find(old).result()
    with pytest.raises(NotFound, match="no key 'nobody'"):
        keys.revoke("nobody").result()


def test_the_first_start_makes_an_admins_key_and_the_next_none(keys: Keys) -> None:
    text = keys.make_first().result()
    assert keys.find(text).result().rights.role == "admin"
    assert keys.make_first().result() is None


def test_scopes_and_models() -> None:
    user = Key("1", "u", Rights("user", ("inference",), ("small",)), 0)
    user.may("inference")
    user.may_use("small")
    with pytest.raises(Forbidden, match="may not use files"):
        user.may("files")
    with pytest.raises(Forbidden, match="may not use the model 'large', only small") as caught:
        user.may_use("large")
    assert caught.value.param == "model"
    with pytest.raises(Forbidden):
        Key("2", "w", Rights("worker"), 0).may("inference")
    admin = Key("3", "a", Rights("admin", ()), 0)
    admin.may("jobs")
    admin.may_use("any")


WRONG: list[tuple[str, dict[str, Any], str]] = [
    ("", {}, "name"),
    ("a\nb", {}, "name"),
    ("x", {"role": "root"}, "role"),
    ("x", {"scopes": ("everything",)}, "scopes"),
    ("x", {"service_tier": "best"}, "service_tier"),
    ("x", {"requests_per_minute": 0}, "requests_per_minute"),
    ("x", {"tokens_per_day": -1}, "tokens_per_day"),
    ("x", {"models": ("a,b",)}, "models"),
]


@pytest.mark.parametrize(("name", "rights", "param"), WRONG)
def test_wrong_rights_are_refused_by_name(keys: Keys, name: str, rights: dict[str, Any], param: str) -> None:
    with pytest.raises(ConfigError) as caught:
        keys.make(name, Rights(**rights)).result()
    assert caught.value.param == param
    assert keys.all().result() == []


def test_a_request_has_at_most_the_service_tier_of_its_key(keys: Keys) -> None:
    key, text = keys.make("ann", Rights(service_tier="flex")).result()
    assert keys.find(text).result().rights.service_tier == "flex"
    assert (key.tier("priority"), key.tier("flex")) == ("flex", "flex")
    plain = keys.make("bob").result()[0]
    assert (plain.tier("priority"), plain.tier("flex")) == ("default", "flex")
    assert keys.make("root", Rights("admin")).result()[0].tier("priority") == "priority"


def test_usage_adds_up_by_day_and_model(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    log = UsageLog(store)
    for day, model in ((1, "a"), (1, "a"), (1, "b"), (2, "a")):
        monkeypatch.setattr("rondo.control.usage.today", lambda day=day: f"2026-01-{day:02d}")
        log.add("k", model, 1, 10, 5)
    log.add("other", "a", 1, 1, 1)
    wait_until(lambda: len(log.usage("k").result()) == 3 and log.usage("other").result())
    assert log.usage("k").result() == [
        Usage("2026-01-01", "a", 2, 20, 10),
        Usage("2026-01-01", "b", 1, 10, 5),
        Usage("2026-01-02", "a", 1, 10, 5),
    ]
    assert log.usage("k", since="2026-01-02").result() == [Usage("2026-01-02", "a", 1, 10, 5)]


def test_no_addition_to_the_usage_is_lost(store: Store) -> None:
    """Additions from many threads, half of them while a transaction fails."""
    log = UsageLog(store)

    def add() -> None:
        for _ in range(200):
            log.add("k", "m", 1, 2, 3)

    threads = [threading.Thread(target=add) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    wait_until(lambda: [each.requests for each in log.usage("k").result()] == [800])
    (usage,) = log.usage("k").result()
    assert (usage.input_tokens, usage.output_tokens) == (1600, 2400)


def test_usage_that_could_not_be_written_is_written_with_the_next(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    log, real = UsageLog(store), of_usage.add_usage

    def broken(*_: object) -> None:
        raise sa.exc.OperationalError("INSERT", {}, Exception("disk full"))

    monkeypatch.setattr(of_usage, "add_usage", broken)
    log.add("k", "m", 1, 2, 3)
    wait_until(lambda: not log._writing)
    monkeypatch.setattr(of_usage, "add_usage", real)
    log.add("k", "m", 1, 2, 3)
    wait_until(lambda: [each.requests for each in log.usage("k").result()] == [2])


def test_usage_of_the_pause_is_written_when_it_is_flushed(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(of_usage, "PAUSE_SECONDS", 3600)
    log = UsageLog(store)
    log.add("k", "m", 1, 2, 3)
    wait_until(lambda: [each.requests for each in log.usage("k").result()] == [1])
    log.add("k", "m", 1, 2, 3)
    assert [each.requests for each in log.usage("k").result()] == [1]
    log.flush().result()
    assert [each.requests for each in log.usage("k").result()] == [2]


def test_a_spent_daily_quota_is_refused_until_the_next_day(
    keys: Keys, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = UsageLog(keys.store)
    key, _ = keys.make("team", Rights(tokens_per_day=100)).result()
    free, _ = keys.make("free").result()
    assert log.check_quota(key).result() == 100
    log.add(key.id, "a", 1, 50, 10)
    log.add(key.id, "b", 1, 30, 9)
    log.add(free.id, "a", 1, 500, 500)
    wait_until(lambda: log.check_quota(key).result() == 1)
    log.add(key.id, "b", 1, 0, 5)
    wait_until(lambda: [each.output_tokens for each in log.usage(key.id).result()][-1:] == [14])
    with pytest.raises(RateLimited, match="has used 104 of its 100 tokens for today") as caught:
        log.check_quota(key).result()
    assert caught.value.status == 429
    assert caught.value.code == "tokens_per_day"
    assert 0 < caught.value.after <= 86400
    assert log.check_quota(free).result() is None
    tomorrow = time.time() + 86400
    monkeypatch.setattr(time, "time", lambda: tomorrow)
    assert log.check_quota(key).result() == 100


def test_usage_of_a_transaction_that_is_not_committed_counts(
    keys: Keys, monkeypatch: pytest.MonkeyPatch
) -> None:
    log, real = UsageLog(keys.store), of_usage.add_usage
    key, _ = keys.make("one", Rights(tokens_per_day=10)).result()
    begun, go = threading.Event(), threading.Event()

    def slow(*given: Any) -> None:
        begun.set()
        assert go.wait(60)
        real(*given)

    monkeypatch.setattr(of_usage, "add_usage", slow)
    log.add(key.id, "m", 1, 4, 5)
    assert begun.wait(60)
    assert log.check_quota(key).result() == 1
    log.add(key.id, "m", 1, 1, 0)
    with pytest.raises(RateLimited) as caught:
        log.check_quota(key).result()
    assert caught.value.after == SETTLED_SECONDS, "what is about to be written may be counted twice"
    go.set()
    wait_until(lambda: log.usage(key.id).result())
    wait_until(lambda: not log._in_flight)
    with pytest.raises(RateLimited) as caught:
        log.check_quota(key).result()
    assert caught.value.after > SETTLED_SECONDS


def test_a_store_that_fails_accepts_no_key(keys: Keys) -> None:
    _, text = keys.make("one").result()
    keys.store.write(lambda db: db.execute(sa.text("DROP TABLE keys"))).result()
    with pytest.raises(sa.exc.DBAPIError):
        keys.find(text).result()


def limited(**rights: int) -> Key:
    return Key("k", "k", Rights(**rights), 0)  # type: ignore[arg-type]


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
