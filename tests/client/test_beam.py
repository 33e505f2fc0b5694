"""The search alone, over tables of log-probabilities in place of a model."""

import itertools
import math
import random
from collections.abc import Callable

import pytest

from rondo.base.errors import InvalidRequest
from rondo.client.beam import BeamSearch, BeamSearchParams, Scored

PROMPT = [0, 1]
Model = Callable[[list[int]], list[float]]


def table_model(vocab: int, seed: int) -> Model:
    """Log-probabilities of the next token, another for each beginning."""

    def next_token(tokens: list[int]) -> list[float]:
        rng = random.Random(hash((seed, *tokens)))
        weights = [rng.expovariate(1) ** 2 for _ in range(vocab)]
        return [math.log(weight / sum(weights)) for weight in weights]

    return next_token


def scored(model: Model, tokens: list[int]) -> Scored:
    return Scored(sorted(enumerate(model(tokens)), key=lambda pair: -pair[1]), 0)


def search(model: Model, params: BeamSearchParams, ends=(), longest: int = 100, pruned: bool = True):
    """(the best beams, how many times a beam was asked for)."""
    found, asked = BeamSearch(PROMPT, params, ends, longest), 0
    if not pruned:
        found._has_chances = lambda beam: True
    while found.beams:
        asked += len(found.beams)
        found.take([scored(model, beam.tokens) for beam in found.beams])
    return found.best(), asked


def all_answers(model: Model, vocab: int, end: int, longest: int) -> dict[tuple[int, ...], float]:
    answers = {}
    for length in range(1, longest + 1):
        for answer in itertools.product(range(vocab), repeat=length):
            if end in answer[:-1] or (length < longest and answer[-1] != end):
                continue
            steps = [model([*PROMPT, *answer[:i]])[token] for i, token in enumerate(answer)]
            answers[answer] = sum(steps)
    return answers


@pytest.mark.parametrize("penalty", [-1.0, 0.0, 0.7, 1.0, 3.0])
@pytest.mark.parametrize("seed", range(4))
def test_a_beam_as_wide_as_all_answers_finds_the_best(seed, penalty):
    model = table_model(3, seed)
    params = BeamSearchParams(27, 3, length_penalty=penalty, include_stop_str_in_output=True)
    beams, _ = search(model, params, ends=[2])

    def score(answer):
        return answers[answer] / (len(PROMPT) + len(answer) - (answer[-1] == 2)) ** penalty

    answers = all_answers(model, 3, 2, 3)
    best = sorted(answers, key=score, reverse=True)
    assert [tuple(beam.tokens[2:]) for beam in beams] == best
    assert [beam.cum_logprob for beam in beams] == pytest.approx([answers[each] for each in best])
    assert all((beam.finish_reason == "stop") == (beam.tokens[-1] == 2) for beam in beams)


@pytest.mark.parametrize("penalty", [-2.0, 0.0, 0.5, 1.0, 2.0])
@pytest.mark.parametrize("width", [1, 2, 3, 5])
def test_what_is_not_asked_any_more_could_not_have_won(width, penalty):
    saved = 0
    for seed in range(20):
        model = table_model(12, seed)
        params = BeamSearchParams(width, 12, length_penalty=penalty)
        beams, asked = search(model, params, ends=[3, 4])
        slow, all_asked = search(model, params, ends=[3, 4], pruned=False)
        assert [beam.tokens for beam in beams] == [beam.tokens for beam in slow]
        saved += all_asked - asked
    assert saved > 0 or penalty > 0


def test_the_token_that_ends_a_beam_is_shown_where_asked_for():
    model = table_model(6, 1)
    hidden, _ = search(model, BeamSearchParams(3, 8), ends=[5])
    shown, _ = search(model, BeamSearchParams(3, 8, include_stop_str_in_output=True), ends=[5])
    assert any(beam.finish_reason == "stop" for beam in shown)
    for one, other in zip(hidden, shown, strict=True):
        ended = other.finish_reason == "stop"
        assert other.stop_reason == (5 if ended else None)
        assert one.tokens == (other.tokens[:-1] if ended else other.tokens)
        assert len(one.logprobs) == len(one.scored) == len(one.tokens) - 2
        assert one.cum_logprob == other.cum_logprob


def test_ends_are_ordinary_tokens_with_ignore_eos():
    beams, _ = search(table_model(6, 1), BeamSearchParams(3, 8, ignore_eos=True), ends=[5])
    assert {len(beam.tokens) for beam in beams} == {10}
    assert any(5 in beam.tokens for beam in beams)


def test_it_ends_where_the_context_does():
    beams, _ = search(table_model(6, 1), BeamSearchParams(2, None), longest=7)
    assert [len(beam.tokens) for beam in beams] == [7, 7]
    assert {beam.finish_reason for beam in beams} == {"length"}


def test_an_abort_keeps_what_there_is():
    model, found = table_model(6, 1), BeamSearch(PROMPT, BeamSearchParams(2, 9), (), 100)
    found.take([scored(model, PROMPT)])
    found.abort()
    assert not found.beams
    assert [beam.finish_reason for beam in found.best()] == ["abort", "abort"]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("beam_width", 0),
        ("beam_width", 51),
        ("max_tokens", 0),
        ("length_penalty", math.nan),
        ("length_penalty", 11),
    ],
)
def test_what_makes_no_sense_is_named(field, value):
    with pytest.raises(InvalidRequest, match=field) as error:
        BeamSearchParams(**{"beam_width": 2, field: value})
    assert error.value.param == field
