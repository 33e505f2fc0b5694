"""Events of the prefix cache: a reader's state is that of the cache, whatever it missed."""

from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rondo.base.errors import Conflict
from rondo.client.protocol.prefix import PromptPieces, hashes, pieces_of
from rondo.engine.kv.blocks import BlockPool
from rondo.engine.kv.events import IDLE_SECONDS, CacheChanges, CacheEvents
from rondo.engine.kv.groups import GroupedPool

SCHEME = (8, 100)
SIZE = 4
"""Tokens of a block; a token has two bytes, so that a piece is a block."""


class Cache:
    """A pool whose prompts are computed and released at once."""

    def __init__(self, blocks: int, capacity: int = 1000) -> None:
        self.now = 0.0
        self.pool = BlockPool(blocks, SIZE)
        self.grouped = GroupedPool([self.pool])
        self.pool.events = self.events = CacheEvents(self.pool.published, SIZE, capacity, lambda: self.now)

    def run(self, tokens: list[int]) -> None:
        keys: list[int] = []
        self.grouped.extend_keys(keys, 0, tokens)
        found = self.pool.match(keys, 0, tokens, len(keys))
        self.pool.share(found)
        fresh = self.pool.allocate(len(keys) - len(found))
        for i, block in enumerate(fresh, len(found)):
            assert self.pool.publish(
                block, keys[i], keys[i - 1] if i else 0, tokens[i * SIZE : (i + 1) * SIZE]
            )
        self.events.computed(prompt_of(tokens), len(tokens), keys)
        self.pool.release([*found, *fresh])

    def cached(self, tokens: list[int]) -> int:
        keys: list[int] = []
        self.grouped.extend_keys(keys, 0, tokens)
        return len(self.pool.match(keys, 0, tokens, len(keys)))


def prompt_of(tokens: list[int]) -> PromptPieces:
    text = array("H", tokens).tobytes()
    return PromptPieces(hashes(b"m", text, *SCHEME), SCHEME[0], len(text))


class Reader:
    def __init__(self, cache: Cache) -> None:
        self.cache, self.epoch, self.last, self.held = cache, "", 0, set[int]()
        self.snapshots = 0
        self.read()

    def read(self) -> CacheChanges:
        changes = self.cache.events.read(SCHEME, self.epoch, self.last)
        self.held = set() if changes.whole else self.held
        self.snapshots += changes.whole
        self.held = (self.held | set(changes.stored)) - set(changes.dropped)
        self.epoch, self.last = changes.epoch, changes.last
        return changes

    def length(self, tokens: list[int]) -> int:
        pieces = prompt_of(tokens).hashes
        return next((i for i, piece in enumerate(pieces) if piece not in self.held), len(pieces))


prompts = st.lists(
    st.tuples(st.sampled_from([1, 2, 3]), st.integers(1, 5), st.booleans()), min_size=1, max_size=40
)


@given(prompts, st.sampled_from([3, 1000]))
def test_a_reader_knows_exactly_the_prefixes_in_the_cache(
    steps: list[tuple[int, int, bool]], capacity: int
) -> None:
    cache = Cache(6, capacity)
    reader = Reader(cache)
    for kind, blocks, reads in steps:
        cache.run([kind] * (SIZE * blocks))
        if reads:
            reader.read()
    reader.read()
    for kind in (1, 2, 3):
        tokens = [kind] * (SIZE * 5)
        assert reader.length(tokens) == cache.cached(tokens)


def test_a_reader_that_is_behind_or_of_another_epoch_receives_a_snapshot() -> None:
    cache = Cache(100, capacity=4)
    reader, slow = Reader(cache), Reader(cache)
    for kind in range(4):
        cache.run([kind] * SIZE * 2)
        assert not reader.read().whole
    assert slow.read().whole
    assert slow.held == reader.held
    assert len(slow.held) == 8
    assert slow.read() == CacheChanges(slow.epoch, slow.last, False, [], [])
    assert cache.events.read(SCHEME, "other", 3).whole
    assert cache.events.read(SCHEME, slow.epoch, slow.last + 1).whole


def test_an_emptied_cache_begins_anew() -> None:
    cache = Cache(10)
    reader = Reader(cache)
    cache.run([1] * SIZE)
    reader.read()
    cache.pool.forget()
    assert reader.read().whole
    assert reader.held == set()


def test_nothing_is_recorded_without_a_reader() -> None:
    cache = Cache(10)
    assert cache.events.scheme is None
    cache.run([1] * SIZE)
    reader = Reader(cache)
    assert reader.held == set()
    assert cache.events.scheme == SCHEME
    cache.run([1] * SIZE)
    reader.read()
    assert len(reader.held) == 1
    with pytest.raises(Conflict, match=r"gateway\.router\.piece"):
        cache.events.read((16, 100), "", 0)
    cache.now = IDLE_SECONDS + 1
    assert cache.events.scheme is None
    assert reader.read().whole
    assert cache.events.read(SCHEME, "", 0).stored == []


def test_a_change_wakes_readers() -> None:
    cache = Cache(10)
    Reader(cache)
    woken: list[int] = []
    end = cache.events.on_change(lambda: woken.append(1))
    cache.run([1] * SIZE)
    assert woken
    end()
    before = len(woken)
    cache.run([2] * SIZE)
    assert len(woken) == before


def test_prefixes_of_bodies() -> None:
    first = (
        b'{"model": "m", "messages": [{"role": "user", "content": "' + b"a" * 300 + b'"}], "max_tokens": 3}'
    )
    same = first.replace(b'"max_tokens": 3', b'"stream": true').replace(b'{"model": "m", ', b'{"model":"m",')
    one, other = pieces_of(first, 64, 256), pieces_of(same, 64, 256)
    assert one is not None
    assert one == other
    assert len(one.hashes) == one.size // 64
    longer = pieces_of(first.replace(b'aaa"', b'aab and more"'), 64, 256)
    assert longer is not None
    assert longer.hashes[:4] == one.hashes[:4]
    assert pieces_of(first.replace(b'"model"', b'"cache_salt": "s", "model"'), 64, 2) not in (None, one)
    assert len(pieces_of(first, 64, 2).hashes) == 2  # type: ignore[union-attr]
    assert pieces_of(b'{"model": "m", "prompt": "short"}', 64, 256) is None
    assert pieces_of(b'{"model": "m", "prompt": ["' + b"a" * 300 + b'", "b"]}', 64, 256) is None
