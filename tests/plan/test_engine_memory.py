"""Estimates of an engine's memory, against the KV cache that an engine allocates."""

import pytest

from rondo.engine.config import EngineConfig
from rondo.engine.core import EngineCore
from rondo.models import Decoder, families
from rondo.plan.engine_memory import DEFAULT_CACHE_BYTES, engine_memory, token_bytes
from rondo.plan.sizes.hf import shape_of
from support.families import CONFIGS


@pytest.mark.parametrize("family", ["llama3", "qwen3", "gemma2", "mixtral", "deepseek-v2-lite"])
def test_the_cache_of_an_engine_is_at_most_the_estimate(family: str) -> None:
    config = CONFIGS[family]().to_dict()
    model = Decoder(families.parse(config))
    core = EngineCore(model, EngineConfig(max_num_seqs=2, max_model_len=64, device="cpu"))
    allocated = sum(tensor.nbytes for tensor in core.runner.cache.tensors)
    memory = engine_memory(0, shape_of(config, family), "cpu", value_bytes=4, requests=2, length=64)
    assert 0 < allocated <= memory.cache
    if not shape_of(config, family).windows:
        assert memory.cache < 1.1 * allocated


def test_a_cache_has_room_for_one_request_and_is_otherwise_bounded() -> None:
    shape = shape_of(CONFIGS["llama3"]().to_dict(), "tiny")
    small = engine_memory(10, shape, "cpu", value_bytes=2, requests=1, length=100)
    assert small.weights == 10
    assert 2 * 100 * token_bytes(shape, 2) <= small.cache < 2.1 * 100 * token_bytes(shape, 2)
    assert engine_memory(0, shape, "cpu", value_bytes=2, requests=10**9).cache == DEFAULT_CACHE_BYTES
    long = engine_memory(0, shape, "cpu", value_bytes=2, requests=1, length=10**9)
    assert long.cache >= 10**9 * token_bytes(shape, 2)
    assert engine_memory(0, shape, "cpu", value_bytes=2, requests=9, cache=5).cache == 5
    assert engine_memory(0, None, "cpu", value_bytes=2, requests=9).cache == DEFAULT_CACHE_BYTES
