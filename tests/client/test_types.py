import subprocess
import sys

import pytest

from rondo.base.errors import InvalidRequest
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


def test_chunks_join():
    a = TokenChunk("r", 0, [1], [0], logprobs=[-1.0], text="a")
    a.extend(TokenChunk("r", 0, [2], [1], logprobs=[-2.0], text="b", finish_reason="stop"))
    assert (a.token_ids, a.weight_versions, a.logprobs, a.text) == ([1, 2], [0, 1], [-1.0, -2.0], "ab")
    assert a.finish_reason == "stop"


def test_types_are_light():
    code = "import sys, rondo.client.types; print([m for m in ('torch', 'pydantic', 'starlette') if m in sys.modules])"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "[]"
