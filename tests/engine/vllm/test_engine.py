"""Requests to an engine over vLLM, on one that is played: how it fails, and what becomes of requests then."""

import asyncio
import json
from contextlib import aclosing

import numpy as np
import pytest

from engine.vllm.played import PARAMS, Played, make, run
from rondo.base.errors import (
    Conflict,
    InvalidRequest,
    Overloaded,
    RondoError,
    Unavailable,
)
from rondo.base.telemetry.account import RequestStats
from rondo.client.engine import fault_of
from rondo.client.structured import StructuredOutputsParams
from rondo.client.types import GenerateRequest
from rondo.engine.config import EngineConfig, VllmConfig
from rondo.engine.vllm.backend import OutputDelta, likeliest, spread
from rondo.engine.vllm.client import pieces, prompt_logprobs, refusal
from support.engines import collect


def test_pieces_become_samples(engine):
    spans = [1, 1, 2]
    backend = Played(
        OutputDelta(0, [5]),
        OutputDelta(0, [6, 7], finish_reason="length", versions=spans),
        OutputDelta(0, (), cached=4),
    )

    async def work():
        return [chunk async for chunk in engine.generate(GenerateRequest("a", [9, 9], PARAMS))]

    account = RequestStats("request")
    with account:
        chunks = run(engine, backend, work)
    assert [(one.output_tokens, one.finish_reason) for one in account.samples] == [(3, "length")]
    assert [token for chunk in chunks for token in chunk.token_ids] == [5, 6, 7]
    assert (chunks[-1].finish_reason, chunks[-1].cached_tokens) == ("length", 4)
    assert chunks[-1].weight_versions[-1] == 2
    counts = {m.name: m.samples for m in engine.metrics.collect()}
    assert counts["rondo:generation_tokens"][0].value == 3
    assert counts["rondo:num_requests_running"][0].value == 0


def test_ends_are_ours(engine):
    """Which tokens end an answer is said, and an end of the model's own is not a `stop_reason`."""
    eos = min(engine.model.eos_ids)
    backend = Played(OutputDelta(0, [5, eos], finish_reason="stop", stop_reason=eos))
    params = PARAMS.with_(stop_token_ids=(7,))

    async def work():
        return [chunk async for chunk in engine.generate(GenerateRequest("a", [9], params))][-1]

    last = run(engine, backend, work)
    assert (last.finish_reason, last.stop_reason) == ("stop", None)
    assert backend.asked[0].sampling()["stop_token_ids"] == sorted({7, *engine.model.eos_ids})
    assert backend.asked[0].sampling()["max_tokens"] == 8


def test_samples_of_a_greedy_request_are_computed_once(engine):
    backend = Played(OutputDelta(0, [5]), OutputDelta(0, [6], finish_reason="length"))
    heard = run(engine, backend, lambda: collect(engine, "a", PARAMS.with_(n=2)))
    assert heard.tokens == [[5, 6]] * 2
    assert backend.asked[0].sampling()["n"] == 1


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ((OutputDelta(0, [5]), Unavailable("vLLM ended")), "vLLM ended"),
        ((OutputDelta(0, [5]),), "before its end"),
        ((OutputDelta(0, [5]), KeyError("choices")), "the cause is in the log"),
        ((OutputDelta(3, [5]),), "the cause is in the log"),
    ],
)
def test_an_answer_that_breaks_off_is_an_error_and_the_next_one_is_not(engine, given, says):
    async def work():
        with pytest.raises(RondoError, match=says):
            await collect(engine, "a", PARAMS)
        engine.backend = Played(OutputDelta(0, [6], finish_reason="length"))
        return await collect(engine, "a", PARAMS)

    assert run(engine, Played(*given), work).tokens == [[6]]
    assert engine.in_flight == 0


def test_abort_ends_the_answer_and_vllms_work(engine):
    async def work():
        backend = engine.backend
        answer = asyncio.create_task(collect(engine, "a", PARAMS))
        await backend.begun.wait()
        await asyncio.sleep(0.05)
        assert engine.load() == (1, 0)
        await engine.abort("a")
        heard = await answer
        assert (heard.tokens, heard.reason) == ([[5]], "abort")
        await asyncio.sleep(0.05)
        assert backend.left == 1

        async with aclosing(engine.generate(GenerateRequest("b", [9], PARAMS))) as stream:
            await anext(stream)
        await asyncio.sleep(0.05)
        assert (backend.left, engine.in_flight) == (2, 0)

    async def main():
        engine.backend = Played(OutputDelta(0, [5]), None)
        await work()

    asyncio.run(main())


def test_the_queue_is_bounded(engine):
    async def main():
        engine.backend = Played(None)
        first = asyncio.create_task(collect(engine, "a", PARAMS.with_(n=2, temperature=1)))
        second = asyncio.create_task(collect(engine, "b", PARAMS.with_(n=2, temperature=1)))
        await asyncio.sleep(0.05)
        assert engine.load() == (2, 2)
        with pytest.raises(Overloaded, match="max_queued"):
            await collect(engine, "c", PARAMS)
        with pytest.raises(Conflict, match="running already"):
            await collect(engine, "a", PARAMS)
        for task in (first, second):
            task.cancel()
        await asyncio.gather(first, second, return_exceptions=True)
        assert engine.load() == (0, 0)

    asyncio.run(main())


@pytest.mark.parametrize(
    ("changes", "prompt", "param"),
    [
        ({"logprobs": 1, "temperature": 0.5}, [5], "logprobs_mode"),
        ({}, [], "prompt"),
        ({}, [5000], "prompt"),
        ({}, [5] * 64, "prompt"),
        ({"logit_bias": {4000: 1}}, [5], "logit_bias"),
        ({"allowed_token_ids": (4000,)}, [5], "allowed_token_ids"),
        ({"prompt_logprobs": 0, "temperature": 0.5}, [5], "logprobs_mode"),
        ({"bad_word_ids": ((4,),)}, [5], "bad_words"),
    ],
)
def test_what_is_refused_before_vllm_is_asked(engine, changes, prompt, param):
    with pytest.raises(InvalidRequest) as refused:
        run(engine, Played(), lambda: collect(engine, "a", PARAMS.with_(**changes), prompt))
    assert refused.value.param == param


def test_the_form_of_an_answer_is_vllms_to_enforce(engine):
    form = StructuredOutputsParams(choice=["a", "b"])
    backend = Played(OutputDelta(0, [5], finish_reason="length"))
    run(engine, backend, lambda: collect(engine, "a", PARAMS.with_(structured_outputs=form)))
    said = backend.asked[0].sampling()["structured_outputs"]
    assert said == {"choice": ("a", "b"), "disable_any_whitespace": False, "whitespace_pattern": None}


def vector_of(engine, backend):
    async def work():
        request = GenerateRequest("a", [5, 6], PARAMS, pooling="last")
        return [chunk async for chunk in engine.generate(request)]

    return run(engine, backend, work)


def test_it_gives_answers_or_vectors(engine, folders):
    with pytest.raises(InvalidRequest, match="answers, not vectors"):
        vector_of(engine, Played())
    config = EngineConfig(vllm=VllmConfig(runner="pooling"))
    pooling = make(config, engine.model, folders / "0")
    with pytest.raises(InvalidRequest, match="vectors, not answers") as refused:
        run(pooling, Played(), lambda: collect(pooling, "a", PARAMS))
    assert refused.value.code == "not_supported"
    numbers = np.array([1.5, -2.0], dtype=np.float32)
    [chunk] = vector_of(pooling, Played(OutputDelta(0, (), vector=numbers, finish_reason="stop", cached=1)))
    assert (chunk.vector, chunk.finish_reason, chunk.cached_tokens) == ([1.5, -2.0], "stop", 1)
    assert pooling.metrics.prompt_tokens == 2
    with pytest.raises(RondoError, match="not finite"):
        vector_of(pooling, Played(OutputDelta(0, (), vector=numbers * np.inf, finish_reason="stop")))


def test_log_probabilities_of_a_prompt(engine):
    """vLLM names them by token; those of a token that is among the likeliest come once."""
    params = PARAMS.with_(prompt_logprobs=1)
    asked = type("Asked", (), {"request": GenerateRequest("a", [9, 8, 7], params)})()
    said = [
        None,
        {"8": {"logprob": -3.0, "rank": 4}, "2": {"logprob": -1.0, "rank": 1}},
        {"7": {"logprob": -0.5, "rank": 1}},
    ]
    scores = prompt_logprobs(said, asked)
    assert scores == [None, [(8, -3.0, 4), (2, -1.0, 1)], [(7, -0.5, 1), (7, -0.5, 1)]]
    backend = Played(
        OutputDelta(0, (), prompt_logprobs=scores), OutputDelta(0, [5], finish_reason="length", cached=2)
    )

    async def work():
        request = GenerateRequest("a", [9, 8, 7], params)
        return [chunk async for chunk in engine.generate(request)]

    [chunk] = run(engine, backend, work)
    assert (chunk.prompt_logprobs, chunk.cached_tokens) == (scores, 0)


def test_a_cache_salt_is_part_of_vllms(engine):
    backend = Played(OutputDelta(0, [5], finish_reason="length"))

    async def work():
        for number, salt in enumerate([None, "x", "y"]):
            request = GenerateRequest(str(number), [9, 8, 7], PARAMS, cache_salt=salt)
            async for _ in engine.generate(request):
                pass

    run(engine, backend, work)
    plain, *salted = (asked.salt for asked in backend.asked)
    assert salted == [f"{plain}.x", f"{plain}.y"]


def test_draining_lets_requests_finish(engine):
    async def main():
        backend = engine.backend = Played(
            OutputDelta(0, [5]), None, OutputDelta(0, [6], finish_reason="length")
        )
        backend.stop = lambda: backend.done.append(("stop",))
        answer = asyncio.create_task(collect(engine, "a", PARAMS))
        await backend.begun.wait()
        ending = asyncio.create_task(engine.drain(20))
        await asyncio.sleep(0.05)
        with pytest.raises(Unavailable, match="shutting down"):
            await collect(engine, "b", PARAMS)
        backend.go.set()
        await ending
        assert (await answer).tokens == [[5, 6]]
        assert backend.done == [("stop",)]
        assert (engine.failure.code, fault_of(engine)) == ("shutting_down", None)

    asyncio.run(main())


def test_vllms_own_form_of_an_answer():
    entry = {
        "token_id": 7,
        "logprob": -3.0,
        "rank": 5,
        "top_logprobs": [
            {"token_id": 7, "logprob": -3.0, "rank": 5},
            *({"token_id": 10 + rank, "logprob": -float(rank), "rank": rank} for rank in (1, 2)),
        ],
    }
    choice = {
        "index": 1,
        "token_ids": [7],
        "finish_reason": "length",
        "stop_reason": None,
        "weight_versions": [
            {"version": "default", "start": 0, "end": 1},
            {"version": "3", "start": 1, "end": 3},
        ],
        "logprobs": {"content": [entry]},
    }
    request = GenerateRequest("a", [5], PARAMS.with_(logprobs=2))
    asked = type("Asked", (), {"request": request})()
    [piece] = pieces({"choices": [choice], "usage": None}, asked)
    assert (piece.index, piece.tokens, piece.logprobs, piece.versions) == (1, [7], [-3.0], [0, 3, 3])
    assert piece.top == [[(11, -1.0), (12, -2.0)]]
    usage = {"prompt_tokens_details": {"cached_tokens": 16}}
    assert pieces({"choices": [], "usage": usage}, asked)[0].cached == 16
    assert likeliest([(7, -0.5, 1), (8, -0.7, 2)], 2) == [(7, -0.5), (8, -0.7)]
    assert spread(None) is None


def test_what_vllm_refuses_is_told_in_its_words():
    def said(status, message):
        return refusal(
            status, json.dumps({"error": {"message": message, "type": "BadRequestError"}}).encode()
        )

    assert (type(said(400, "bad id")), said(400, "bad id").message) == (InvalidRequest, "bad id")
    failed = said(500, "Call failed: Worker failed with error 'No such file', please check the stack trace")
    assert failed.message == "vLLM could not do it: No such file"
    assert refusal(503, b"<html>").status == 500
