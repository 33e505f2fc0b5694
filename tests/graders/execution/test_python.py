"""OpenAI's `python` graders, and programs graded by a spec, in the sandbox."""

import asyncio
from typing import Any

import pytest

from graders.garbage import GARBAGE
from rondo.base.errors import ConfigError
from rondo.graders import Sample, Score
from rondo.graders.registry import grader_of
from rondo.graders.sandbox.isolation import isolation

pytestmark = pytest.mark.skipif(
    not isolation().available, reason="programs cannot be walled in here: `rondo doctor` says why"
)


def scores(source: str, *answers: str, **fields: Any) -> list[Score]:
    grader = grader_of({"type": "python", "name": "mine", "source": source, **fields})

    async def each() -> list[Score]:
        made = [Sample("", answer, metadata={"item": {"answer": "Lima", "n": [1]}}) for answer in answers]
        return list(await asyncio.gather(*map(grader.score, made)))

    return asyncio.run(each())


def score(source: str, answer: str = "Lima", **fields: Any) -> Score:
    return scores(source, answer, **fields)[0]


def test_a_grader_sees_the_sample_and_the_item() -> None:
    source = """
import json
def grade(sample, item) -> float:
    assert item == {"answer": "Lima", "n": [1]}
    assert sample["choices"][0]["message"]["content"] == sample["output_text"]
    if sample["output_json"]:
        return sample["output_json"]["share"]
    return sample["output_text"] == item["answer"]
"""
    right, wrong, share = scores(source, "Lima", "lima", '{"share": 0.25}')
    assert (right, wrong.total, share.total) == (Score("ok", 1.0), 0.0, 0.25)


@pytest.mark.parametrize(
    ("body", "outcome", "said"),
    [
        ("return float('nan')", "error", "nan"),
        ("return 'good'", "error", "ValueError"),
        ("return None", "error", "TypeError"),
        ("raise KeyError('city')", "error", "KeyError: 'city'"),
        ("import os; os._exit(0)", "error", "no number"),
        ("print('1.0'); import sys; sys.exit(0)", "error", "failed"),
        ("while True: pass", "timeout", "too long"),
        ("import time; time.sleep(600)", "timeout", "too long"),
        ("import socket; socket.create_connection(('127.0.0.1', 9)); return 1", "error", "failed"),
        ("return len(open('/etc/shadow').read())", "error", "failed"),
        ("import re; return re.fullmatch('(a+)+b', 'a' * 60) is None", "timeout", "too long"),
    ],
)
def test_whatever_else_it_does_is_no_verdict(body: str, outcome: str, said: str) -> None:
    found = score(f"def grade(sample, item):\n    {body}\n", seconds=2.0)
    assert (found.outcome, found.total) == (outcome, 0.0), found.detail
    assert said in found.detail


def test_garbage_goes_through() -> None:
    source = "def grade(sample, item): return len(sample['output_text'])"
    assert [each.total for each in scores(source, *GARBAGE)] == [len(answer) for answer in GARBAGE]


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("", "must define"),
        ("def grad(sample, item): return 1", "must define"),
        ("def grade(:", "no Python"),
        ("#" * 300_000, "more than"),
    ],
)
def test_a_source_that_is_none(source: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said) as wrong:
        score(source)
    assert wrong.value.param == "grader.source"


def test_an_image_of_openai_s_has_no_effect() -> None:
    assert score("def grade(sample, item): return 1", image_tag="2025-05-08").total == 1


def test_programs_by_a_spec() -> None:
    grader = grader_of({"type": "code", "total": "share", "limits": {"seconds": 5.0, "cpu_seconds": 2}})
    tests = ["assert double(2) == 4", "assert double('a') == 'aa'"]
    answer = "```python\ndef double(x): return x + 2\n```"
    found = asyncio.run(grader.score(Sample("", answer, metadata={"tests": tests})))
    assert (found.outcome, found.parts["passed"]) == ("ok", 0.5)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"limits": {"second": 5}}, "grader.limits.second"),
        ({"limits": {"seconds": -1}}, "grader.limits.seconds"),
        ({"total": "some"}, "grader.total"),
        ({"sandbox": {}}, "grader.sandbox"),
        ({"packages": "/usr"}, "grader.packages"),
        ({"packages": ["/nowhere"]}, "grader.packages"),
    ],
)
def test_mistakes_in_a_spec_for_programs(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(ConfigError) as wrong:
        grader_of({"type": "code", **fields})
    assert wrong.value.param == param
