"""Prefix caching with salts: only requests with the same salt share blocks."""

import pytest

from rondo.client.types import GenerateRequest, SamplingParams
from rondo.engine.config import EngineConfig
from rondo.engine.core import EngineCore
from rondo.engine.kv.blocks import salt_of

PROMPT = list(range(5, 25))
GREEDY = SamplingParams(max_tokens=6, temperature=0.0, ignore_eos=True)


@pytest.fixture
def core(tiny):
    return EngineCore(tiny, EngineConfig(max_num_seqs=4, block_size=4))


def add(core, id, salt):
    return core.add(GenerateRequest(id, PROMPT, GREEDY, cache_salt=salt))[0]


def generate(core, id, salt):
    """(tokens found in the prefix cache, the answer) of one request that runs alone."""
    request = add(core, id, salt)
    while core.has_work:
        core.step()
    return request.first_cached, request.tokens[len(PROMPT) :]


def test_a_prefix_is_found_under_its_salt_alone(core):
    first, answer = generate(core, "a", "x")
    assert first == 0
    for id, salt, cached in [("b", "x", 16), ("c", "y", 0), ("d", None, 0), ("e", None, 16), ("f", "y", 16)]:
        assert generate(core, id, salt) == (cached, answer), (id, salt)


def test_requests_with_different_salts_share_no_blocks_while_they_run(core):
    requests = [add(core, str(i), salt) for i, salt in enumerate(["x", "y", None, "x"])]
    while not all(request.generated for request in requests):
        core.step()
    x, y, plain, again = (set(request.tables[0].blocks) for request in requests)
    assert not x & y
    assert not x & plain
    assert not y & plain
    assert len(x & again) == 4
    while core.has_work:
        core.step()


def test_a_salt_is_the_same_number_in_every_process():
    assert salt_of("x") == 0x481A9217872502DBC43C90B10F53C8F532ACFBA97C620144B026B74216712D
    assert salt_of("x") != salt_of("y")
    assert salt_of("") != 0
