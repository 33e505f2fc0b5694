"""Beam search over HTTP, as vLLM offers it: the `openai` client with `extra_body`."""

import asyncio
import logging
import time

import httpx
import openai
import pytest

from rondo.base.errors import Overloaded
from rondo.server import beam as searching
from server.families import HERMES
from support.engines import slowly
from support.waiting import run, until

CHAT = [{"role": "user", "content": "abc def"}]
BEAM = {"use_beam_search": True}


@pytest.fixture
def client(running) -> openai.OpenAI:
    return openai.OpenAI(base_url=running.url + "/v1", api_key="none", max_retries=0)


def complete(client, extra=None, **options):
    body = {"model": "tiny", "prompt": "abc def", "max_tokens": 8} | options
    return client.completions.create(**body, extra_body=BEAM | (extra or {}))


def total(choice) -> float:
    return sum(choice.logprobs.token_logprobs)


def test_the_beams_are_the_choices_best_first(client):
    answer = complete(client, n=4, logprobs=2, extra={"ignore_eos": True, "return_token_ids": True})
    assert [choice.index for choice in answer.choices] == [0, 1, 2, 3]
    totals = [total(choice) for choice in answer.choices]
    assert totals == sorted(totals, reverse=True)
    assert len({tuple(choice.token_ids) for choice in answer.choices}) == 4
    assert {choice.finish_reason for choice in answer.choices} == {"length"}
    greedy = client.completions.create(
        model="tiny",
        prompt="abc def",
        max_tokens=8,
        temperature=0,
        logprobs=2,
        extra_body={"ignore_eos": True},
    )
    assert totals[0] >= total(greedy.choices[0]) - 1e-4
    usage = answer.usage
    assert usage.prompt_tokens == greedy.usage.prompt_tokens
    assert usage.completion_tokens == 32 == usage.total_tokens - usage.prompt_tokens
    for choice in answer.choices:
        assert len(choice.logprobs.tokens) == 8
        assert all(2 <= len(top) <= 3 for top in choice.logprobs.top_logprobs)


def test_one_beam_is_greedy(client):
    options = {"model": "tiny", "messages": CHAT, "max_tokens": 12, "logprobs": True, "top_logprobs": 3}
    beam = client.chat.completions.create(**options, extra_body=BEAM).choices[0]
    greedy = client.chat.completions.create(**options, temperature=0).choices[0]
    assert beam.message.content == greedy.message.content
    ours, theirs = beam.logprobs.content, greedy.logprobs.content
    assert [token.token for token in ours] == [token.token for token in theirs[: len(ours)]]
    assert [len(token.top_logprobs) for token in ours] == [3] * len(ours)


@pytest.mark.parametrize(
    "given", [{"temperature": 0}, {"temperature": 1.7, "seed": 3}, {"top_p": 1.0, "stop": []}]
)
def test_nothing_is_drawn(client, given):
    plain, other = complete(client, n=3), complete(client, n=3, **given)
    assert [choice.text for choice in plain.choices] == [choice.text for choice in other.choices]


def test_the_length_penalty_ranks(client):
    """Below 0 short answers win; the end token is shown where that is asked for."""

    def lengths(penalty, **extra):
        extra |= {"length_penalty": penalty, "return_token_ids": True}
        answer = complete(client, n=8, max_tokens=24, extra=extra)
        return [
            (len(choice.token_ids), choice.finish_reason, choice.stop_reason) for choice in answer.choices
        ]

    short, long = lengths(-8.0), lengths(8.0)
    assert sum(each[0] for each in short) < sum(each[0] for each in long)
    ended = [(length, stop) for length, reason, stop in short if reason == "stop"]
    assert ended
    assert None not in {stop for _, stop in ended}
    shown = lengths(-8.0, include_stop_str_in_output=True)
    assert [length for length, reason, _ in shown if reason == "stop"] == [length + 1 for length, _ in ended]


def test_several_prompts_and_an_echo(client):
    answer = complete(client, prompt=["abc", "b c d"], n=2, echo=True)
    assert [choice.index for choice in answer.choices] == [0, 1, 2, 3]
    assert [choice.text.startswith("abc") for choice in answer.choices[:2]] == [True, True]
    assert all(choice.text.startswith("b c d") for choice in answer.choices[2:])
    alone = complete(client, prompt="b c d", n=2, echo=True)
    assert [choice.text for choice in alone.choices] == [choice.text for choice in answer.choices[2:]]


REFUSED = {
    "stream": True,
    "top_p": 0.9,
    "top_k": 5,
    "min_p": 0.1,
    "min_tokens": 2,
    "presence_penalty": 0.5,
    "frequency_penalty": 0.5,
    "repetition_penalty": 1.1,
    "logit_bias": {"5": 1},
    "stop": "a",
    "stop_token_ids": [5],
    "bad_words": ["a"],
    "allowed_token_ids": [5, 6],
    "prompt_logprobs": 0,
    "best_of": 9,
    "n": 51,
    "length_penalty": 11,
    "response_format": {"type": "json_object"},
    "guided_choice": ["a"],
}


@pytest.mark.parametrize("route", ["chat/completions", "completions"])
@pytest.mark.parametrize("field", REFUSED)
def test_what_makes_no_sense_with_it_is_named(running, route, field):
    own = {"messages": CHAT} if route.startswith("chat") else {"prompt": "abc"}
    body = {"model": "tiny", "max_tokens": 2, **own, **BEAM, field: REFUSED[field]}
    answer = httpx.post(f"{running.url}/v1/{route}", json=body)
    assert answer.status_code == 400, answer.text
    assert answer.json()["error"]["param"] == field
    assert field in answer.json()["error"]["message"]


@pytest.mark.parametrize(
    ("given", "param"),
    [({"echo": True, "logprobs": 1}, "echo"), ({"echo": True, "max_tokens": 0}, "max_tokens")],
)
def test_what_is_told_of_a_prompt_is_refused(client, given, param):
    with pytest.raises(openai.BadRequestError) as error:
        complete(client, **given)
    assert error.value.param == param


def test_calls_are_read_from_each_beam(talk, served, monkeypatch):
    """They may be made, but not be a must."""
    tool = {"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}
    options = {"model": "tiny", "messages": CHAT, "tools": [tool], "max_tokens": 5}
    with pytest.raises(openai.BadRequestError) as error:
        talk.chat.completions.create(**options, tool_choice="required", extra_body=BEAM)
    assert error.value.param == "tool_choice"
    said = '<tool_call>\n{"name": "add", "arguments": {}}\n</tool_call>'
    monkeypatch.setattr(searching.Beams, "_text", lambda self, ids, sampling: said)
    answer = talk.chat.completions.create(**options, n=2, extra_body=BEAM)
    assert [choice.message.tool_calls[0].function.name for choice in answer.choices] == ["add", "add"]
    assert HERMES  # the template of `served`


def idle(engine) -> bool:
    return not engine.core.has_work and not engine.core._requests


def test_all_of_it_ends_when_the_client_leaves(running, monkeypatch):
    runner = running.engine.core.runner
    monkeypatch.setattr(runner, "run", slowly(runner.run, 0.02))
    body = {"model": "tiny", "prompt": "abc", "max_tokens": 400, "n": 4, "ignore_eos": True, **BEAM}
    seen = []

    async def leave() -> None:
        async with httpx.AsyncClient() as client:
            task = asyncio.create_task(client.post(running.url + "/v1/completions", json=body))
            for _ in range(500):
                await asyncio.sleep(0.01)
                seen.append(running.engine.core.scheduler.num_running)
                if len(seen) > 5 and max(seen) == 4:
                    break
            task.cancel()

    asyncio.run(leave())
    assert max(seen) == 4
    counters = running.engine.core.scheduler.counters

    def over() -> bool:
        """Between two steps of a search the engine is idle too."""
        computed = counters.moved
        time.sleep(0.2)
        return idle(running.engine) and counters.moved == computed

    begun = counters.moved
    run(until(over))
    assert counters.moved - begun < 4 * 400 / 2


def test_one_that_has_begun_waits_where_the_queue_is_full(running, client, monkeypatch):
    alone = complete(client, n=3)
    generate, calls = running.engine.generate, []

    async def crowded(request):
        calls.append(request.id)
        if len(calls) % 3 == 2:
            raise Overloaded("full", code="queue_full")
        async for chunk in generate(request):
            yield chunk

    monkeypatch.setattr(running.engine, "generate", crowded)
    assert [each.text for each in complete(client, n=3).choices] == [each.text for each in alone.choices]
    calls[:] = ["the next one is refused"]
    with pytest.raises(openai.RateLimitError):
        complete(client, n=3)


def test_an_abort_keeps_what_there_is(running, client, monkeypatch):
    generate, calls = running.engine.generate, []

    async def ending(request):
        calls.append(request.id)
        async for chunk in generate(request):
            if len(calls) > 7:
                chunk.finish_reason = "abort"
            yield chunk

    monkeypatch.setattr(running.engine, "generate", ending)
    answer = complete(client, n=2, extra={"ignore_eos": True, "return_token_ids": True})
    assert {choice.finish_reason for choice in answer.choices} == {"abort"}
    assert {len(choice.token_ids) for choice in answer.choices} == {4}
    assert set(calls) == {f"{answer.id}-0-0", f"{answer.id}-0-1"}


def test_the_log_has_it_as_one_answer(client):
    """Said by the account that the log and the spans are made of."""
    told = []

    class Told(logging.Handler):
        def emit(self, record):
            told.append(record)

    handler, log = Told(), logging.getLogger("rondo.access")
    level = log.level
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    try:
        answer = complete(client, n=2, extra={"ignore_eos": True})
        run(until(lambda: told))
    finally:
        log.removeHandler(handler)
        log.setLevel(level)
    line = told[0]
    assert (line.id, line.output_tokens, line.finish_reason) == (f"{answer.id}-0", 16, "length")
    assert line.prompt_tokens == answer.usage.prompt_tokens
