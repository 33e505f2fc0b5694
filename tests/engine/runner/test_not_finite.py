"""A model whose logits are not finite for some tokens: only who meets them gets an error."""

import asyncio

import pytest
import torch

from rondo.base.errors import RondoError
from rondo.client.types import GenerateRequest, SamplingParams
from rondo.engine.config import EngineConfig
from rondo.engine.core import EngineCore
from rondo.engine.entrypoints.llm import LLM
from rondo.models import new
from rondo.ops import NO_TOKEN, draw
from rondo.ops.vocabulary.draw import likeliest
from support.engines import threaded
from support.waiting import run

POISON = 96
CONFIG = EngineConfig(max_num_seqs=4, block_size=4, num_blocks=16, max_model_len=32)
PLAIN = SamplingParams(max_tokens=8, seed=1, ignore_eos=True, detokenize=False)
KINDS = [
    PLAIN,
    PLAIN.with_(temperature=0),
    PLAIN.with_(top_p=0.9, logprobs=2),
    PLAIN.with_(logit_bias={5: 1.0}, logprobs=0),
]


@pytest.fixture(scope="module")
def poisoned(tiny):
    """Its head is not tied to the embedding, so that only prompts with the token meet the NaN."""
    model = new({**tiny.config.hf, "tie_word_embeddings": False}, seed=0).eval()
    with torch.no_grad():
        model.embed.weight[POISON] = torch.nan
    return model


def test_rows_without_a_finite_sum_give_no_token():
    logits = torch.tensor([[0.0, 1.0], [0.0, torch.nan], [0.0, torch.inf], [-torch.inf, 0.0]])
    logits = torch.cat([logits, torch.full((1, 2), -torch.inf)])
    want = [False, True, True, False, True]
    assert (likeliest(logits) == NO_TOKEN).tolist() == want
    assert (draw(logits.softmax(-1), torch.full((5,), 0.5)) == NO_TOKEN).tolist() == want


@pytest.mark.parametrize("kv_dtype", ["auto", "bfloat16", "int8", "fp8"])
@pytest.mark.parametrize("params", KINDS)
def test_only_the_request_that_meets_them_ends(poisoned, params, kv_dtype):
    free = params.with_(logit_bias={**params.logit_bias, POISON: -100.0})
    config = CONFIG.model_copy(update={"kv_dtype": kv_dtype})
    want = LLM(poisoned, config=config).generate([[5, 6, 7]], free)[0].outputs[0].token_ids
    core = EngineCore(poisoned, config)
    for round in range(3):
        core.add(GenerateRequest("good", [5, 6, 7], free))
        core.add(GenerateRequest("bad", [5, 6, 7, 8, 9, POISON, 7, 8, 9, 10], params))
        samples = {name: core._requests[name][0] for name in ("good", "bad")}
        while core.has_work:
            core.step()
        core.pool.check()
        assert samples["bad"].error is not None
        assert samples["bad"].finish_reason == "abort"
        assert samples["bad"].generated == 0
        assert samples["good"].tokens[3:] == want, round
    assert all(tensor.isfinite().all() for tensor in core.runner.cache.tensors)


def test_both_engines_raise_it_and_go_on(poisoned):
    llm = LLM(poisoned, config=CONFIG)
    with pytest.raises(RondoError, match="not finite"):
        llm.generate([[5], [POISON]], PLAIN)
    assert not llm.core.has_work

    async def ask(engine, token):
        params = PLAIN.with_(logit_bias={POISON: -100.0})
        return [chunk async for chunk in engine.generate(GenerateRequest(str(token), [token], params))]

    async def main(engine):
        good = asyncio.create_task(ask(engine, 5))
        with pytest.raises(RondoError, match="not finite"):
            await ask(engine, POISON)
        assert (await good)[-1].finish_reason == "length"
        assert engine.ready

    with threaded(llm.core) as engine:
        run(main(engine))
