"""Graders out of JSON and TOML."""

import asyncio
import tomllib
from pathlib import Path
from typing import Any

import pytest

from rondo.base.errors import ConfigError, NotFound
from rondo.graders import Sample, Score
from rondo.graders.registry import GRADERS, grader_of

GRADE = """
import re, time
def grade(item, answer): return {"short": len(answer) < 5, "right": float(answer == item["answer"])}
def number(item, answer): return 0.5
def hang(item, answer): time.sleep(600)
def nan(item, answer): return float("nan")
def text(item, answer): return "good"
def boom(item, answer): raise ValueError("boom")
def regex(item, answer): return re.fullmatch("(a+)+b", answer) is not None
"""


def score(spec: dict[str, Any], completion: str = "Lima") -> Score:
    return asyncio.run(grader_of(spec).score(Sample("", completion, "Lima", {"item": {"answer": "Lima"}})))


def test_weighted_parts_out_of_toml() -> None:
    spec = tomllib.loads(
        """
        type = "weighted"
        [graders.answer]
        type = "match"
        extract = "answer_tag"
        [graders.form]
        type = "format"
        tags = ["answer"]
        max_characters = 100
        weight = 0.2
        """
    )
    found = score(spec, "It is <answer>Lima</answer>.")
    assert found.total == pytest.approx(1.2)
    assert found.parts == {
        "answer": 1.0,
        "answer.found": 1.0,
        "answer.correct": 1.0,
        "form": 1.0,
        "form.tags": 1.0,
        "form.length": 1.0,
    }
    assert score(spec, "Lima").total == pytest.approx(0.1)


@pytest.mark.parametrize(
    ("spec", "param", "said"),
    [
        ({}, "grader.type", "needs a type: one of string_check"),
        ({"type": "mach"}, "grader.type", "Did you mean match"),
        ({"type": 3}, "grader.type", "no type"),
        ("match", "grader", "is a table"),
        ({"type": "match", "extrac": "boxed"}, "grader.extrac", "Did you mean extract"),
        ({"type": "match", "extract": "box"}, "grader.extract", "boxed"),
        ({"type": "match", "tolerance": "much"}, "grader.tolerance", "number"),
        ({"type": "match", "tolerance": True}, "grader.tolerance", "true and false"),
        ({"type": "match", "name": ""}, "grader.name", "must be text"),
        ({"type": "match", "timeout_s": 0}, "grader.timeout_s", "above 0"),
        ({"type": "format"}, "grader", "needs a rule"),
        ({"type": "format", "tags": "answer"}, "grader.tags", "tuple"),
        ({"type": "string_check", "input": "x"}, "grader.reference", "needs reference, operation"),
        (
            {"type": "string_check", "input": "x", "reference": "{{ y }}", "operation": "eq"},
            "grader.reference",
            "must begin with",
        ),
        (
            {"type": "string_check", "input": "x", "reference": "y", "operation": "neq"},
            "grader.operation",
            "ilike",
        ),
        ({"type": "weighted"}, "grader.graders", "a table of them by name"),
        ({"type": "weighted", "graders": {"a b": {"type": "match"}}}, "grader.graders.a b", "a word"),
        (
            {"type": "weighted", "graders": {"a": {"type": "match", "weight": "1"}}},
            "grader.graders.a.weight",
            "number",
        ),
        (
            {"type": "weighted", "graders": {"a": {"type": "match", "wait": 1}}},
            "grader.graders.a.wait",
            "no field",
        ),
        ({"type": "multi", "graders": {"a": {"type": "match"}}}, "grader.calculate_output", "a formula"),
        (
            {"type": "multi", "graders": {"near": {"type": "match"}}, "calculate_output": "2 * neer"},
            "grader.calculate_output",
            "Did you mean near",
        ),
        (
            {"type": "text_similarity", "input": "", "reference": "", "evaluation_metric": "cosine"},
            "grader.model",
            "needs",
        ),
        ({"type": "function", "function": "grade"}, "grader.function", "module:attribute"),
        ({"type": "function", "function": "math:pi"}, "grader.function", "no function"),
    ],
)
def test_mistakes_are_named_with_the_nearest_right_word(spec: Any, param: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said) as wrong:
        grader_of(spec)
    assert wrong.value.param == param


def test_graders_without_end_in_each_other() -> None:
    spec: dict[str, Any] = {"type": "match"}
    for _ in range(200):
        spec = {"type": "weighted", "graders": {"a": spec}}
    with pytest.raises(ConfigError, match="deep"):
        grader_of(spec)


def test_every_type_has_an_entry() -> None:
    assert {"string_check", "text_similarity", "score_model", "python", "multi", "code"} <= GRADERS.keys()


@pytest.fixture
def file(tmp_path: Path) -> str:
    (tmp_path / "grades.py").write_text(GRADE)
    return str(tmp_path / "grades.py")


def test_a_function_of_one_s_own(file: str) -> None:
    assert score({"type": "function", "function": f"{file}:grade"}).parts == {"short": 1.0, "right": 1.0}
    assert score({"type": "function", "function": f"{file}:number"}).total == 0.5
    assert score({"type": "function", "function": f"{file}:hang", "seconds": 0.3}).outcome == "timeout"
    slow = {"type": "function", "function": f"{file}:regex", "seconds": 0.5}
    assert score(slow, "a" * 60).outcome == "timeout"
    assert score(slow, "aab").total == 1
    with pytest.raises(NotFound, match="Did you mean grade"):
        score({"type": "function", "function": f"{file}:grad"})


@pytest.mark.parametrize(
    ("function", "said"), [("nan", "finite"), ("text", "must be a number"), ("boom", "boom")]
)
def test_a_function_that_fails_is_an_error_when_it_is_guarded(file: str, function: str, said: str) -> None:
    found = score({"type": "function", "function": f"{file}:{function}", "timeout_s": 20.0, "name": "mine"})
    assert (found.outcome, found.total) == ("error", 0.0)
    assert said in found.detail
    assert "mine" in found.detail
