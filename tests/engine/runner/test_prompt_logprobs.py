"""The log-probabilities of a prompt, beside transformers' of the same model, however the prompt is computed."""

import pytest
import torch
from transformers import AutoModelForCausalLM

from rondo import models
from rondo.base.errors import InvalidRequest
from rondo.client.types import SamplingParams
from rondo.engine.config import EngineConfig
from rondo.engine.entrypoints.llm import LLM
from support.tiny import tiny_model

PROMPTS = [[(7 * i + 3 * j * j) % 290 + 3 for j in range(n)] for i, n in enumerate((23, 1, 40, 23, 9))]
PROMPTS[3] = PROMPTS[0][:16] + PROMPTS[3][16:]


@pytest.fixture(scope="module")
def model():
    return tiny_model(seed=3)


@pytest.fixture(scope="module")
def reference(model, tmp_path_factory):
    folder = tmp_path_factory.mktemp("reference") / "tiny"
    models.save(model, folder)
    peer = AutoModelForCausalLM.from_pretrained(folder).eval()

    @torch.no_grad()
    def logprobs(prompt: list[int], temperature: float) -> torch.Tensor:
        return (peer(torch.tensor([prompt])).logits[0].float() / temperature).log_softmax(-1)

    return logprobs


def check(prompt, given, want, count):
    assert given[0] is None
    assert len(given) == len(prompt)
    for at, entry in enumerate(given[1:], start=1):
        row = want[at - 1]
        (token, logprob, rank), *top = entry
        assert token == prompt[at]
        assert logprob == pytest.approx(row[token].item(), abs=1e-4)
        assert abs(rank - 1 - (row > row[token]).sum().item()) <= 1
        assert len(top) == count
        best = row.topk(count) if count else None
        for i, (other, value, place) in enumerate(top):
            assert place == i + 1
            assert value == pytest.approx(best.values[i].item(), abs=1e-4)
            assert value == pytest.approx(row[other].item(), abs=1e-4)


@pytest.mark.parametrize(
    "config",
    [
        {},
        {"max_step_tokens": 7},
        {"speculation": "ngram", "speculation_adaptive": False},
        {"num_blocks": 20, "max_model_len": 70},
        {"prefix_cache": False},
    ],
    ids=str,
)
def test_they_are_those_of_transformers(model, reference, config):
    llm = LLM(model, config=EngineConfig(**{"max_num_seqs": 4, "block_size": 4, **config}))
    plain = SamplingParams(max_tokens=12, seed=1, temperature=0.7, detokenize=False, ignore_eos=True)
    asked = [plain.with_(prompt_logprobs=count, n=n) for count, n in ((3, 1), (0, 1), (2, 3), (1, 2), (5, 1))]
    free = llm.generate(PROMPTS, plain)  # their blocks are there to be found
    outputs = llm.generate(PROMPTS * 2, [*asked, *asked])
    for output, params in zip(outputs, [*asked, *asked], strict=True):
        prompt = output.prompt_token_ids
        check(prompt, output.prompt_logprobs, reference(prompt, 0.7), params.prompt_logprobs)
    for output, alone in zip(outputs, free, strict=False):
        assert output.outputs[0].token_ids == alone.outputs[0].token_ids
        assert alone.prompt_logprobs is None
    llm.core.pool.check()
    assert llm.core.pool.used == 0


def test_raw_ones_are_at_temperature_one(model, reference):
    llm = LLM(model, config=EngineConfig(max_num_seqs=4))
    params = SamplingParams(
        max_tokens=1, temperature=0.3, prompt_logprobs=2, logprobs_mode="raw", detokenize=False
    )
    (output,) = llm.generate([PROMPTS[0]], params)
    check(PROMPTS[0], output.prompt_logprobs, reference(PROMPTS[0], 1.0), 2)


def test_a_bad_count_is_named(model):
    with pytest.raises(InvalidRequest) as caught:
        SamplingParams(prompt_logprobs=1000)
    assert caught.value.param == "prompt_logprobs"
