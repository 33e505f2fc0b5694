"""Fields of SamplingParams beyond the usual ones: each does what it says, alone and beside others."""

import pytest

from rondo.base.errors import InvalidRequest
from rondo.client.types import SamplingParams
from rondo.engine.config import EngineConfig
from rondo.engine.entrypoints.llm import LLM
from support.tiny import tiny_model, tiny_tokenizer


@pytest.fixture(scope="module")
def llm():
    return LLM(tiny_model(seed=3), tiny_tokenizer(), EngineConfig(max_num_seqs=8, block_size=4))


def asked(**params) -> SamplingParams:
    return SamplingParams(**{"max_tokens": 24, "ignore_eos": True, "seed": 1, **params})


def test_bad_words_do_not_come_up(llm):
    (free,) = llm.generate(["the user"], asked(temperature=2.0, n=8))
    texts = [sample.text for sample in free.outputs]
    words = sorted({text[i : i + 2] for text in texts for i in range(0, 20, 5)} - {""} - {" "})
    words = [word for word in words if word.strip() and word.isascii() and word.isprintable()][:6]
    assert words
    (held,) = llm.generate(["the user"], asked(temperature=2.0, n=8, bad_words=words))
    encoded = [
        llm.tokenizer.encode(form, add_special=False)
        for w in words
        for form in (w.lstrip(), " " + w.lstrip())
    ]
    for sample in held.outputs:
        for ids in encoded:
            runs = [sample.token_ids[i : i + len(ids)] for i in range(len(sample.token_ids))]
            assert ids not in runs


def test_only_allowed_tokens_come_up(llm):
    free, held = llm.generate(
        ["the", "the"], [asked(temperature=1.5), asked(temperature=1.5, allowed_token_ids=[40, 41, 50])]
    )
    assert set(held.outputs[0].token_ids) <= {40, 41, 50}
    assert free.outputs[0].token_ids == llm.generate(["the"], asked(temperature=1.5))[0].outputs[0].token_ids


def test_wishes_that_exclude_each_other_end_with_an_error(llm):
    ends = list(llm.core.eos_ids)
    with pytest.raises(InvalidRequest, match="no next token") as caught:
        llm.generate(["the"], asked(allowed_token_ids=ends, min_tokens=3))
    assert caught.value.param == "allowed_token_ids"
    assert not llm.core.has_work
    assert llm.generate(["the"], asked())[0].outputs[0].token_ids


def test_best_of_gives_the_likeliest(llm):
    (every,) = llm.generate(["the"], asked(n=6, logprobs=0, temperature=1.5))
    (best,) = llm.generate(["the"], asked(n=2, best_of=6, temperature=1.5))
    ranked = sorted(every.outputs, key=lambda s: sum(s.logprobs) / len(s.logprobs), reverse=True)
    assert [s.token_ids for s in best.outputs] == [s.token_ids for s in ranked[:2]]
    assert [s.index for s in best.outputs] == [0, 1]
    assert all(s.logprobs is None for s in best.outputs)


def test_a_prompt_may_be_cut(llm):
    prompt = list(range(5, 45))
    cut, whole, fits = llm.generate(
        [prompt, prompt[-7:], list(range(5, 105)) * 3],
        [asked(truncate_prompt_tokens=7), asked(), asked(truncate_prompt_tokens=-1)],
    )
    assert cut.prompt_token_ids == prompt[-7:]
    assert cut.outputs[0].token_ids == whole.outputs[0].token_ids
    assert len(fits.prompt_token_ids) == llm.core.max_model_len - 24


@pytest.mark.parametrize(
    "params",
    [
        {"bad_words": ["the", "user"]},
        {"allowed_token_ids": list(range(30, 90))},
        {"logit_bias": {40: 5.0, 41: -100.0, 42: 2.5}},
        {"min_tokens": 5, "ignore_eos": False},
        {"presence_penalty": 1.0, "frequency_penalty": 0.5, "repetition_penalty": 1.2},
    ],
    ids=lambda params: next(iter(params)),
)
def test_a_seed_gives_the_same_whatever_is_beside_it(llm, params):
    mine = asked(temperature=1.3, **params)
    (alone,) = llm.generate(["the user"], mine)
    others = [asked(seed=i, temperature=1.0, max_tokens=5 + i, n=1 + i % 2) for i in range(5)]
    among = llm.generate([f"other {i}" for i in range(5)] + ["the user"], [*others, mine])
    assert among[-1].outputs[0].token_ids == alone.outputs[0].token_ids


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("bad_words", ["  "]),
        ("bad_words", ["a"] * 2000),
        ("allowed_token_ids", []),
        ("allowed_token_ids", [100000]),
        ("best_of", 0),
        ("truncate_prompt_tokens", 0),
        ("truncate_prompt_tokens", -2),
        ("top_k", -2),
    ],
)
def test_a_bad_value_is_named(llm, field, value):
    with pytest.raises(InvalidRequest) as caught:
        llm.generate(["the"], SamplingParams(**{field: value}))
    assert caught.value.param == field
