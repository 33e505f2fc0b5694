"""Whatever parameters pass the checks, a step goes through: one request cannot take the others down."""

import math

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rondo.base.errors import InvalidRequest
from rondo.client.types import GenerateRequest, SamplingParams
from rondo.engine.config import EngineConfig
from rondo.engine.core import EngineCore

integers = st.one_of(st.integers(-3, 130), st.sampled_from([2**31, 2**63, 2**64, 10**30, -(10**30)]))
numbers = st.one_of(
    st.floats(),
    st.floats(-2, 2),
    st.sampled_from([0, 1, 1e-45, 1e-30, 1e-6, 0.01, 10, 100, math.inf, math.nan, 10**400]),
)
ids = st.one_of(st.integers(0, 96), integers)
FIELDS = {
    "max_tokens": st.one_of(st.none(), integers),
    "min_tokens": st.one_of(st.integers(0, 3), integers),
    "temperature": numbers,
    "top_p": numbers,
    "top_k": integers,
    "min_p": numbers,
    "seed": st.one_of(st.none(), integers),
    "n": st.integers(1, 3),
    "stop_token_ids": st.lists(ids, max_size=3),
    "ignore_eos": st.booleans(),
    "logprobs": st.one_of(st.none(), integers),
    "logprobs_mode": st.sampled_from(["scaled", "raw"]),
    "presence_penalty": numbers,
    "frequency_penalty": numbers,
    "repetition_penalty": numbers,
    "logit_bias": st.dictionaries(ids, numbers, max_size=3),
}


@pytest.fixture(scope="module")
def core(tiny) -> EngineCore:
    config = EngineConfig(max_num_seqs=8, block_size=4, max_model_len=12)
    return EngineCore(tiny, config, eos_ids=(2, 96, 97, 10**6, -1))


@settings(max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(st.fixed_dictionaries({}, optional=FIELDS).filter(lambda given: given), min_size=1, max_size=3),
    integers,
)
def test_no_parameters_that_pass_make_a_step_fail(core, given, priority):
    accepted = []
    for i, fields in enumerate(given):
        # One bad field would hide the others: drop those that are refused.
        kept = {}
        for name, value in fields.items():
            try:
                params = SamplingParams(**{**kept, name: value})
                kept[name] = value
                core._intake.check(GenerateRequest("check", [5], params), [5])
            except InvalidRequest:
                kept.pop(name, None)
        accepted += core.add(GenerateRequest(str(i), [5, 6], SamplingParams(**kept), priority))
    for _ in range(100):
        if not core.has_work:
            break
        core.step()
    assert not core.has_work
    for sample in accepted:
        assert sample.finish_reason in ("stop", "length")
        assert all(0 <= token < 97 for token in sample.tokens)
        assert all(math.isfinite(value) for value in sample.logprobs)
    core.pool.check()


def test_a_temperature_too_small_to_divide_by_is_greedy():
    assert SamplingParams(temperature=1e-45).temperature == 0
    assert SamplingParams(temperature=1e-5).temperature == 1e-5
