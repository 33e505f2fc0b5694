import random

from hypothesis import given, settings
from hypothesis import strategies as st

from rondo.engine.kv.blocks import BlockPool
from rondo.engine.kv.groups import GroupedPool


def root_of(version: int) -> int:
    return GroupedPool([BlockPool(1, 1)]).root(version)


def keys_of(pool: BlockPool, tokens: list[int], root: int) -> list[int]:
    keys: list[int] = []
    GroupedPool([pool]).extend_keys(keys, root, tokens)
    return keys


def publish_all(pool: BlockPool, tokens: list[int], blocks: list[int], root: int) -> None:
    keys = keys_of(pool, tokens, root)
    parent = root
    for i, key in enumerate(keys):
        assert pool.publish(blocks[i], key, parent, tokens[i * pool.block_size : (i + 1) * pool.block_size])
        parent = key


def lookup(pool: BlockPool, tokens: list[int], root: int) -> list[int]:
    keys = keys_of(pool, tokens, root)
    return pool.match(keys, root, tokens, len(keys))


def test_a_published_prefix_is_found_and_shared():
    pool = BlockPool(8, 4)
    root = root_of(0)
    tokens = list(range(10))
    blocks = pool.allocate(3)
    publish_all(pool, tokens, blocks, root)
    assert lookup(pool, tokens, root) == blocks[:2]
    assert lookup(pool, [0, 1, 2, 3, 9, 9, 9, 9], root) == blocks[:1]
    assert lookup(pool, [9, 9, 9, 9, 4, 5, 6, 7], root) == []
    pool.release(blocks)
    assert lookup(pool, tokens, root) == blocks[:2]
    pool.share(blocks[:2])
    assert pool.used == 2
    pool.check()


def test_versions_and_adapters_do_not_mix():
    pool = BlockPool(8, 4)
    tokens = [1, 2, 3, 4]
    publish_all(pool, tokens, pool.allocate(1), root_of(0))
    assert lookup(pool, tokens, root_of(1)) == []


def test_the_least_recently_used_goes_first_and_tails_before_heads():
    pool = BlockPool(4, 2)
    root = root_of(0)
    old, young = pool.allocate(2), pool.allocate(2)
    publish_all(pool, [1, 2, 3, 4], old, root)
    publish_all(pool, [5, 6, 7, 8], young, root)
    pool.release(old)
    pool.release(young)
    pool.allocate(1)
    assert lookup(pool, [1, 2, 3, 4], root) == old[:1]
    pool.allocate(1)
    assert lookup(pool, [1, 2, 3, 4], root) == []
    assert lookup(pool, [5, 6, 7, 8], root) == young
    pool.check()


def test_a_hash_collision_is_no_hit_and_stops_the_chain():
    pool = BlockPool(4, 2)
    a, b = pool.allocate(2)
    assert pool.publish(a, 77, 0, [1, 2])
    assert not pool.publish(b, 77, 0, [3, 4])
    assert pool.match([77], 0, [3, 4], 1) == []
    assert pool.match([77], 5, [1, 2], 1) == []


@settings(max_examples=60)
@given(st.integers(0, 10**6), st.integers(1, 4), st.integers(4, 24))
def test_blocks_are_never_lost_nor_owned_twice(seed, size, count):
    rng = random.Random(seed)
    pool = BlockPool(count, size)
    owners: list[tuple[list[int], list[int]]] = []
    for step in range(60):
        action = rng.random()
        root = root_of(step // 40)
        if action < 0.5:
            tokens = [rng.randrange(2) for _ in range(rng.randrange(1, 4 * size))]
            found = lookup(pool, tokens, root)
            pool.share(found)
            need = pool.blocks_for(len(tokens)) - len(found)
            if need > pool.available:
                pool.release(found)
            else:
                blocks = found + pool.allocate(need)
                publish_all(pool, tokens, blocks, root)
                owners.append((tokens, blocks))
        elif action < 0.95 and owners:
            pool.release(owners.pop(rng.randrange(len(owners)))[1])
        elif action > 0.98:
            pool.forget()
        pool.check()
        held = {block for _, blocks in owners for block in blocks}
        assert pool.used == len(held)
