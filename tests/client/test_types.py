import subprocess
import sys

import numpy as np
import pytest

from rondo.base.errors import InvalidRequest, ModelError
from rondo.client.protocol.openai import PASSED_ON
from rondo.client.protocol.refusals import blaming, renaming
from rondo.client.structured import StructuredOutputsParams
from rondo.client.types import SamplingParams, TokenChunk


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("temperature", -1),
        ("top_p", 0),
        ("top_p", 1.5),
        ("min_p", 2),
        ("max_tokens", 0),
        ("max_tokens", 10**400),
        ("bad_words", ["a" * 70_000]),
        ("n", 0),
        ("logprobs", 1000),
        ("stop", ("",)),
        ("presence_penalty", 3),
        ("repetition_penalty", 0),
        ("temperature", None),
        ("top_p", "0.5"),
        ("logit_bias", None),
        ("logit_bias", {3: "much"}),
        ("logprobs_mode", None),
        ("logprobs_mode", 5),
        ("allowed_token_ids", np.array([], int)),
    ],
)
def test_a_bad_value_is_named(field, value):
    with pytest.raises(InvalidRequest) as caught:
        SamplingParams(**{field: value})
    assert caught.value.param == field


def test_stop_may_be_one_string_and_top_k_minus_one_means_all():
    params = SamplingParams(stop="END", top_k=-1)
    assert params.stop == ("END",)
    assert params.top_k == 0


@pytest.mark.parametrize("field", ["stop", "stop_token_ids", "bad_words", "bad_word_ids"])
def test_none_is_an_empty_list(field):
    assert getattr(SamplingParams(**{field: None}), field) == ()


def test_none_allows_all_tokens():
    assert SamplingParams(allowed_token_ids=None).allowed_token_ids is None


@pytest.mark.parametrize("field", ["stop_token_ids", "allowed_token_ids"])
@pytest.mark.parametrize("kind", [np.array, list, iter])
def test_token_ids_may_be_any_sequence(field, kind):
    ids = getattr(SamplingParams(**{field: kind([3, 4])}), field)
    assert ids == (3, 4)
    assert all(type(token) is int for token in ids)


def test_words_as_tokens_become_tuples():
    assert SamplingParams(bad_word_ids=([1, 2], np.array([3]))).bad_word_ids == ((1, 2), (3,))


def test_fields_are_passed_on_once():
    assert len(set(PASSED_ON)) == len(PASSED_ON)


def test_whoever_shares_an_error_is_told_by_his_own_field():
    shared = InvalidRequest("prompt 3 is long: prompt", param="prompt.3", code="long")
    for field in ("messages", "input"):
        with pytest.raises(InvalidRequest, match=rf"^{field} 3 is long: prompt$") as caught, blaming(field):
            raise shared
        assert (caught.value.param, caught.value.code) == (field, "long")
        assert caught.value.__cause__ is shared
    assert (str(shared), shared.param) == ("prompt 3 is long: prompt", "prompt.3")


def test_other_errors_stay_what_they_are():
    for error in (InvalidRequest("n is bad", param="n"), ModelError("prompt", param="prompt")):
        with pytest.raises(type(error)) as caught, renaming({"prompt": "messages"}):
            raise error
        assert caught.value is error


def test_a_tag_is_checked_before_it_is_written(monkeypatch):
    structure = {"begin": "<f>", "schema": {}, "end": "</f>"}
    tag = {"structures": [structure], "triggers": ["<f"]}
    loads = []
    monkeypatch.setattr("rondo.client.structured.json.loads", loads.append)
    params = StructuredOutputsParams(structural_tag=tag)
    assert loads == []
    monkeypatch.undo()
    assert StructuredOutputsParams(structural_tag=params.structural_tag) == params
    for wrong in ({**tag, "triggers": ["<g"]}, {**tag, "structures": []}, [tag], {**tag, "triggers": {1}}):
        with pytest.raises(InvalidRequest):
            StructuredOutputsParams(structural_tag=wrong)


def test_chunks_join():
    a = TokenChunk("r", 0, [1], [0], logprobs=[-1.0], text="a")
    a.extend(TokenChunk("r", 0, [2], [1], logprobs=[-2.0], text="b", finish_reason="stop"))
    assert (a.token_ids, a.weight_versions, a.logprobs, a.text) == ([1, 2], [0, 1], [-1.0, -2.0], "ab")
    assert a.finish_reason == "stop"


def test_types_are_light():
    code = "import sys, rondo.client.types; print([m for m in ('torch', 'pydantic', 'starlette') if m in sys.modules])"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "[]"
