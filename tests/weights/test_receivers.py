"""Engines of several tensor-parallel ranks that update from a segment or over HTTP."""

import asyncio

import pytest

from engine.conftest import TINY
from rondo.client.types import SamplingParams
from rondo.engine.config import EngineConfig
from rondo.engine.entrypoints.llm import LLM
from rondo.engine.weights.weight_session import WeightSession
from rondo.models import new, save
from rondo.models.files.mapping import to_hf
from rondo.weights.config import WeightsConfig
from rondo.weights.publisher import Publisher
from rondo.weights.shards import Shard
from rondo.weights.transports.serving import VersionServer
from rondo.weights.transports.source import WeightSource

MODEL = TINY | {"vocab_size": 101, "num_attention_heads": 4, "num_key_value_heads": 2}
CONFIG = EngineConfig(max_num_seqs=4, block_size=4, num_blocks=40, max_model_len=60)


class Served:
    """An engine without its thread."""

    def __init__(self, core):
        self.core = core

    async def check_weights(self, path, version):
        self.core.check_weights(path, version)

    async def update_weights(self, path, version, requests="retain"):
        self.core.update_weights(path, version, requests)


def answers(llm):
    """Tokens and all their log-probabilities, of the prompt and of the answer."""
    params = SamplingParams(
        max_tokens=6, temperature=0.0, logprobs=20, prompt_logprobs=20, detokenize=False, ignore_eos=True
    )
    found = llm.generate([[5, 6, 7, 8, 9], [70, 3, 44]], params)
    return [(each.prompt_logprobs, each.outputs[0].token_ids, each.outputs[0].top_logprobs) for each in found]


@pytest.mark.parametrize("size", [2, 4])
def test_ranks_that_update_from_a_source_equal_a_fresh_load_bit_for_bit(size, tmp_path):
    """Over HTTP to other weights, and from a segment back to the first ones."""
    models = {seed: new(MODEL, seed=seed) for seed in (0, 1)}
    for seed, model in models.items():
        save(model, tmp_path / str(seed))
    publisher = Publisher("m", MODEL, WeightsConfig(folder=str(tmp_path), bucket_bytes=5000))
    server = VersionServer("m", "127.0.0.1")
    config = CONFIG.model_copy(update={"tensor_parallel": size})
    fresh = LLM(tmp_path / "1", tokenizer=object(), config=config)
    expected = {1: answers(fresh)}
    fresh.close()
    updated = LLM(tmp_path / "0", tokenizer=object(), config=config)
    try:
        expected[0] = answers(updated)
        assert expected[0] != expected[1]
        for version, (seed, kind) in enumerate([(1, "http"), (0, "shm")], 1):
            publisher.register(
                lambda seed=seed: [Shard(name, tensor) for name, tensor in to_hf(models[seed])]
            )
            publisher.push(version)
            server.offer(WeightSource.parse(publisher.source).folder, version)
            update(updated.core, server.source if kind == "http" else publisher.source, version)
            assert updated.core.weight_version == version
            assert answers(updated) == expected[seed]
    finally:
        updated.close()
        server.close()
        publisher.close()


def update(core, source, version):
    async def steps():
        session = WeightSession(Served(core))
        session.start()
        await session.update(WeightSource.parse(source), version)
        await session.finish(version)

    asyncio.run(steps())
