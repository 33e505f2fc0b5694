"""Answers of a given form, by a model that knows nothing: whatever it prefers, only what the form allows comes out."""

import asyncio
import json
import random
import re

import pytest

from rondo.base.errors import InvalidRequest
from rondo.client.structured import StructuredOutputsParams
from rondo.client.types import GenerateRequest, SamplingParams
from rondo.engine.config import EngineConfig
from rondo.engine.core import EngineCore
from rondo.engine.entrypoints.async_engine import AsyncEngine
from rondo.engine.entrypoints.llm import LLM
from rondo.engine.schedule.request import Request
from rondo.engine.structured import checker
from rondo.engine.structured.grammars import Grammars
from rondo.engine.structured.masks import Masker
from rondo.engine.structured.matcher import GrammarMatcher
from support.tiny import tiny_model, tiny_tokenizer

SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 6, "pattern": "^[a-z]*$"},
        "age": {"type": "integer", "minimum": 0, "maximum": 99},
        "kind": {"enum": ["cat", "dog"]},
    },
    "required": ["name", "age", "kind"],
    "additionalProperties": False,
}
PATTERN = r"[a-c]{2,4}-[0-9]{3}( x)?"
FORMS = {
    "json": StructuredOutputsParams(json=SCHEMA),
    "regex": StructuredOutputsParams(regex=PATTERN),
    "choice": StructuredOutputsParams(choice=["yes", "no", 'yes"\\ ü\n', "not at all"]),
    "lark": StructuredOutputsParams(grammar='start: "a" start "b" | "-"'),
    "gbnf": StructuredOutputsParams(grammar='root ::= xy xy? "."\nxy ::= "x" | "y"'),
}


HARD = [rf"/(.|\n)*a(.|\n){{{count}}}b(.|\n)*/" for count in range(1, 10)]
"""Patterns that are small each, and large where all must be met."""


def fits(kind: str, text: str) -> bool:
    if kind == "json":
        value = json.loads(text)
        name, age = value["name"], value["age"]
        return list(value) == list(SCHEMA["properties"]) and len(name) <= 6 and 0 <= age <= 99
    if kind == "choice":
        return text in FORMS["choice"].choice
    pattern = {"regex": PATTERN, "lark": r"(a*)-(b*)", "gbnf": r"[xy]{1,2}\."}[kind]
    found = re.fullmatch(pattern, text)
    return found is not None and (kind != "lark" or len(found[1]) == len(found[2]))


@pytest.fixture(scope="module")
def model():
    return tiny_model(seed=3)


@pytest.fixture(scope="module")
def tokenizer():
    return tiny_tokenizer()


def engine(model, tokenizer, **config) -> LLM:
    return LLM(model, tokenizer, EngineConfig(**{"max_num_seqs": 8, "block_size": 4, **config}))


def asked(kind: str, **params) -> SamplingParams:
    return SamplingParams(**{"max_tokens": 200, "seed": 1, "structured_outputs": FORMS[kind], **params})


@pytest.mark.parametrize("kind", FORMS)
def test_answers_have_their_form(model, tokenizer, kind):
    llm = engine(model, tokenizer)
    params = [asked(kind, seed=seed, temperature=t) for seed in range(4) for t in (0.0, 1.0, 3.0)]
    for output in llm.generate(["the user"] * len(params), params):
        (sample,) = output.outputs
        assert sample.finish_reason == "stop"
        assert fits(kind, sample.text), sample.text
    llm.close()


VARIANTS = {
    "ngram": {"speculation": "ngram", "speculation_adaptive": False, "ngram_min": 1},
    "tight": {"num_blocks": 24, "max_model_len": 64},
    "swapping": {
        "num_blocks": 24,
        "max_model_len": 64,
        "swap_bytes": 1 << 20,
        "swap_bytes_per_second": 1e12,
        "recompute_tokens_per_second": 1.0,
    },
    "chunked": {"max_step_tokens": 5},
    "reset": {"prefix_cache": False},
}


@pytest.mark.parametrize("variant", VARIANTS)
def test_every_way_of_running_gives_the_same_answers(model, tokenizer, variant):
    """Samples that part, requests without a form beside those with one, preemption, speculation."""
    params = [asked(kind, n=3, max_tokens=30, temperature=1.5) for kind in FORMS]
    params += [SamplingParams(max_tokens=30, seed=5, n=2), asked("json", max_tokens=30, presence_penalty=0.5)]
    prompts = [f"the user asks {i}" for i in range(len(params))]

    def answers(**config):
        llm = engine(model, tokenizer, **config)
        outputs = llm.generate(prompts, params)
        counters = llm.core.scheduler.counters
        llm.close()
        return [sample.token_ids for output in outputs for sample in output.outputs], counters

    got, counters = answers(**VARIANTS[variant])
    assert got == answers()[0]
    if "num_blocks" in VARIANTS[variant]:
        assert counters.preemptions > 0


def test_a_draft_proposes_within_the_form(model, tokenizer, tmp_path):
    from rondo import models

    models.save(model, tmp_path / "draft")
    params = [asked(kind, n=2, max_tokens=30) for kind in FORMS]
    plain = engine(model, tokenizer)
    drafted = engine(
        model, tokenizer, speculation="draft", draft_model=str(tmp_path / "draft"), speculation_adaptive=False
    )
    want = plain.generate(["the"] * len(params), params)
    got = drafted.generate(["the"] * len(params), params)
    assert [s.token_ids for o in got for s in o.outputs] == [s.token_ids for o in want for s in o.outputs]
    assert drafted.core.speculation.counters.accepted > 0


def test_two_ranks_obey_alike(model, tokenizer, tmp_path):
    from rondo import models

    models.save(model, tmp_path / "model")
    params = [asked(kind, n=2, max_tokens=20) for kind in FORMS] + [SamplingParams(max_tokens=20, seed=1)]
    config = EngineConfig(max_num_seqs=8, block_size=4, tensor_parallel=2)
    two = LLM(tmp_path / "model", tokenizer, config)
    try:
        got = two.generate(["the user"] * len(params), params)
        with pytest.raises(InvalidRequest, match="regex"):
            two.generate(["a"], asked("regex", structured_outputs=StructuredOutputsParams(regex="[")))
        assert two.generate(["the user"], params[-1])[0].outputs[0].token_ids == got[-1].outputs[0].token_ids
    finally:
        two.close()
    want = engine(model, tokenizer).generate(["the user"] * len(params), params)
    assert [s.token_ids for o in got for s in o.outputs] == [s.token_ids for o in want for s in o.outputs]


@pytest.mark.parametrize("count", [1, 3])
def test_what_may_come_next_is_every_token_that_some_answer_goes_on_with(model, tokenizer, count):
    """Also where the form leaves but one text: which tokens it is made of is the model's to choose."""
    choices = ["the user asks", "the answer is: no", "yes", "the user asks again"][:count]
    llm = engine(model, tokenizer)
    matcher = llm.core.grammars.matcher(StructuredOutputsParams(choice=choices))
    spelled = [tokenizer.token_bytes(token) for token in range(model.config.vocab_size)]
    texts = [choice.encode() for choice in choices]
    rng = random.Random(count)
    for _ in range(20):
        request = Request("a", 0, [1], SamplingParams(), max_length=99, arrival=0)
        request.matcher = GrammarMatcher(matcher.state.deep_copy(), matcher.ends, "")
        said = b""
        while True:
            bits = Masker(model.config.vocab_size).start([request], [1]).bits.result()
            got = {t for t in range(len(spelled)) if bits[0, t // 32] >> t % 32 & 1}
            goes_on = {
                t
                for t, piece in enumerate(spelled)
                if piece and t not in tokenizer.special_ids and any(x.startswith(said + piece) for x in texts)
            }
            assert got == goes_on | (set(matcher.ends) if said in texts else set())
            if not goes_on:
                break
            token = rng.choice(sorted(goes_on))
            request.tokens.append(token)
            said += spelled[token]
    llm.close()


def test_logprobs_are_those_before_the_form(model, tokenizer):
    """What a learner computes again: the form is no part of the distribution."""
    llm = engine(model, tokenizer)
    (output,) = llm.generate(["the"], asked("regex", logprobs=0, temperature=1.0))
    tokens = [*output.prompt_token_ids, *output.outputs[0].token_ids]
    for i, logprob in enumerate(output.outputs[0].logprobs):
        at = len(output.prompt_token_ids) + i
        free = SamplingParams(max_tokens=1, logprobs=100, temperature=1.0)
        (again,) = llm.generate([tokens[:at]], free)
        top = dict(again.outputs[0].top_logprobs[0])
        if tokens[at] in top:
            assert logprob == pytest.approx(top[tokens[at]], abs=1e-4)


@pytest.mark.parametrize(
    ("form", "says"),
    [
        ({"regex": "[a-"}, "regex"),
        ({"grammar": "start: missing"}, "missing"),
        ({"json": {"type": "string", "minLength": 5, "maxLength": 2}}, "Unsatisfiable"),
        ({"json": {"type": "array", "uniqueItems": True}}, "uniqueItems"),
        ({"json": "{"}, "JSON"),
        ({"json": [1]}, "object"),
        ({"choice": []}, "empty"),
        ({"choice": ["a", 1]}, "texts"),
        ({"grammar": 'start: start "a"'}, "enforced"),
        ({"regex": "a" * 300_000}, "longer"),
        ({"grammar": "root ::= " + "(" * 60_000 + '"a"' + ")" * 60_000}, "recursion"),
        ({"grammar": f"start: A\nA: {' & '.join(HARD)}"}, "fuel"),
        ({"structural_tag": {"structures": []}}, "triggers"),
        ({"regex": "a", "choice": ["b"]}, "exactly one"),
        ({}, "exactly one"),
    ],
)
def test_what_cannot_be_enforced_is_refused_and_named(model, tokenizer, form, says):
    llm = engine(model, tokenizer)
    with pytest.raises(InvalidRequest, match=says) as caught:
        llm.generate(["the"], SamplingParams(structured_outputs=StructuredOutputsParams(**form)))
    assert caught.value.param == "structured_outputs"
    assert not llm.core.has_work
    llm.close()


def test_each_who_waits_for_a_grammar_is_told_by_his_own_field(tokenizer):
    """All of them wait for the same compilation."""
    grammars = Grammars(tokenizer.vocab_size, tokenizer.eos_ids, 8)
    grammars.set_tokenizer(tokenizer)
    fields = ("structured_outputs", "guided_regex", "text.format", "response_format")

    async def wait() -> list[object]:
        forms = [StructuredOutputsParams(regex="[a-", param=field) for field in fields]
        return await asyncio.gather(*map(grammars.ready, forms), return_exceptions=True)

    for field, error in zip(fields, asyncio.run(wait()), strict=True):
        assert isinstance(error, InvalidRequest)
        assert (error.param, error.code) == (field, "invalid_value")
        assert str(error).startswith(f"{field} cannot be enforced")
    with pytest.raises(InvalidRequest, match=r"^text\.format cannot be enforced"):
        grammars.matcher(StructuredOutputsParams(regex="[a-", param="text.format"))
    grammars.close()


def test_a_schema_that_is_not_strict_may_ask_for_more(model, tokenizer):
    schema = {"type": "array", "items": {"enum": [1, 2]}, "maxItems": 2, "uniqueItems": True}
    form = StructuredOutputsParams(json=schema, strict=False)
    (output,) = engine(model, tokenizer).generate(["a"], asked("json", structured_outputs=form))
    assert set(json.loads(output.outputs[0].text)) <= {1, 2}


def test_a_grammar_that_never_gets_done_is_given_up(model, tokenizer, monkeypatch):
    """In a process of its own, that the time-out ends; the next grammar finds another."""
    monkeypatch.setattr(checker, "CHECK_SECONDS", 0.3)
    hard = {"allOf": [{"type": "string", "pattern": f".*a.{{{i}}}b"} for i in range(1, 30)]}
    llm = engine(model, tokenizer)
    with pytest.raises(InvalidRequest, match="too large"):
        llm.generate(["the"], asked("json", structured_outputs=StructuredOutputsParams(json=hard)))
    monkeypatch.setattr(checker, "CHECK_SECONDS", 5.0)
    (output,) = llm.generate(["the"], asked("regex"))
    assert fits("regex", output.outputs[0].text)
    llm.close()


def test_a_grammar_may_be_refused_at_once(model, tokenizer):
    """Before whoever asked for it has gone on."""
    from concurrent.futures import Future

    class AtOnce:
        def submit(self, work, *args):
            future = Future()
            try:
                future.set_result(work(*args))
            except Exception as error:
                future.set_exception(error)
            return future

        def shutdown(self, **_):
            pass

    llm = engine(model, tokenizer)
    llm.core.grammars._pool = AtOnce()
    for _ in range(2):
        with pytest.raises(InvalidRequest, match="regex"):
            llm.generate(["a"], asked("regex", structured_outputs=StructuredOutputsParams(regex="[")))
    llm.close()


def test_others_go_on_while_a_grammar_is_compiled(model, tokenizer, monkeypatch):
    llm = engine(model, tokenizer)
    waiting = asyncio.Event()
    served = AsyncEngine(llm.core, tokenizer)

    async def text_of(name: str, params: SamplingParams) -> str:
        request = GenerateRequest(name, tokenizer.encode("the"), params)
        return "".join([chunk.text async for chunk in served.generate(request)])

    async def main() -> None:
        loop = asyncio.get_running_loop()
        import threading

        go_on = threading.Event()
        check = checker.Checker.check

        def held(self, params):
            loop.call_soon_threadsafe(waiting.set)
            assert go_on.wait(30)
            return check(self, params)

        monkeypatch.setattr(checker.Checker, "check", held)
        slow = asyncio.create_task(text_of("slow", asked("regex")))
        await waiting.wait()
        # Another that waits for the same grammar, and leaves.
        gone = asyncio.create_task(text_of("gone", asked("regex")))
        await asyncio.sleep(0)
        assert await text_of("free", SamplingParams(max_tokens=5, ignore_eos=True))
        gone.cancel()
        assert not slow.done()
        go_on.set()
        assert fits("regex", await slow)

    try:
        asyncio.run(main())
    finally:
        served.stop()


def test_a_form_and_other_wishes_that_leave_nothing_end_with_an_error(model, tokenizer):
    llm = engine(model, tokenizer)
    form = StructuredOutputsParams(choice=["yes"])
    (output,) = llm.generate(["a"], asked("choice", structured_outputs=form, min_tokens=50))
    assert output.outputs[0].text == "yes"
    (output,) = llm.generate(["a"], asked("choice", structured_outputs=form, ignore_eos=True, max_tokens=9))
    assert output.outputs[0].finish_reason == "length"
    assert output.outputs[0].text.startswith("yes")


def test_a_model_without_tokenizer_or_end_says_so(model, tokenizer):
    with pytest.raises(InvalidRequest, match="tokenizer"):
        LLM(model).generate([[1, 2]], asked("regex", detokenize=False))
    endless = EngineCore(model, eos_ids=())
    endless.grammars.set_tokenizer(tokenizer)
    with pytest.raises(InvalidRequest, match="ends the answer"):
        endless.add(GenerateRequest("a", [1], asked("regex")))
