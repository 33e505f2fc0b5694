"""OpenAI's graders of texts and their formulas; the judges are in test_judge.py."""

import asyncio
import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from graders.garbage import GARBAGE
from rondo.base.errors import ConfigError, InvalidRequest
from rondo.graders import Sample, Score
from rondo.graders.definition.formula import formula
from rondo.graders.registry import grader_of
from rondo.graders.rules.overlap import common

ITEM = {"answer": "Lima"}


def score(spec: dict[str, Any], completion: str, **item: Any) -> Score:
    return asyncio.run(grader_of(spec).score(Sample("", completion, metadata={"item": ITEM | item})))


def check(operation: str, completion: str, text: str = "{{ sample.output_text }}") -> float:
    spec = {
        "type": "string_check",
        "name": "check",
        "input": text,
        "reference": "{{ item.answer }}",
        "operation": operation,
    }
    return score(spec, completion).total


@pytest.mark.parametrize(
    ("operation", "right", "wrong"),
    [
        ("eq", ["Lima"], ["lima", " Lima", "", "{{ item.answer }}"]),
        ("ne", ["lima", ""], ["Lima"]),
        ("like", ["Lima", "in Lima."], ["lima", "Lim", ""]),
        ("ilike", ["Lima", "in LIMA."], ["Lim", ""]),
    ],
)
def test_string_check(operation: str, right: list[str], wrong: list[str]) -> None:
    assert [check(operation, each) for each in right] == [1.0] * len(right)
    assert [check(operation, each) for each in wrong] == [0.0] * len(wrong)


def test_a_field_of_the_answer_s_json() -> None:
    field = "{{ sample.output_json.city }}"
    assert check("eq", '{"city": "Lima"}', field) == 1
    for poor in ('{"town": "Lima"}', "Lima", '{"city": null}'):
        assert check("eq", poor, field) == 0
        assert check("ne", poor, field) == (poor == '{"city": null}')


def test_what_the_record_lacks_is_no_zero() -> None:
    spec = {"type": "string_check", "input": "{{ item.city }}", "reference": "x", "operation": "eq"}
    with pytest.raises(InvalidRequest, match=r"item\.city"):
        score(spec, "")


METRICS = ["fuzzy_match", "bleu", "gleu", *(f"rouge_{n}" for n in range(1, 6)), "rouge_l"]


def similar(metric: str, completion: str, answer: str) -> float:
    spec = {
        "type": "text_similarity",
        "name": "similar",
        "input": "{{ sample.output_text }}",
        "reference": "{{ item.answer }}",
        "evaluation_metric": metric,
    }
    found = score(spec, completion, answer=answer)
    assert found.outcome == "ok", found.detail
    return found.total


@pytest.mark.parametrize("metric", METRICS)
def test_similarity_from_nothing_to_all(metric: str) -> None:
    text = "the quick brown fox jumps over the lazy dog"
    assert similar(metric, text, text) == pytest.approx(1.0)
    assert similar(metric, "", text) == 0
    assert similar(metric, "0 1 2 3 4 5 6 7 8", text) < 0.3
    part = similar(metric, "the quick brown fox jumps over a log", text)
    assert 0.1 < part < 0.95


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("answer", GARBAGE)
def test_similarity_of_garbage(metric: str, answer: str) -> None:
    assert 0 <= similar(metric, answer, "the quick brown fox") <= 1


def test_texts_that_are_too_long_to_compare_are_a_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rondo.graders.rules.similarity.SECONDS", 0.5)
    long = "ab" * 5_000_000
    spec = {
        "type": "text_similarity",
        "input": long,
        "reference": long[::-1],
        "evaluation_metric": "fuzzy_match",
    }
    assert score(spec, "").outcome == "timeout"


@given(st.text("abc", max_size=30), st.text("abc", max_size=30))
def test_the_longest_common_subsequence(a: str, b: str) -> None:
    table = [[0] * (len(b) + 1) for _ in range(len(a) + 1)]
    for i, x in enumerate(a):
        for j, y in enumerate(b):
            table[i + 1][j + 1] = table[i][j] + 1 if x == y else max(table[i][j + 1], table[i + 1][j])
    assert common(a, b) == table[-1][-1]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("a", 0.5),
        ("0.7 * a + 0.3 * b", 0.95),
        ("-a ^ 2", -0.25),
        ("2 ^ 3 ^ 2", 512.0),
        ("min(a, b, 1) + max(a, 0)", 1.0),
        ("abs(-a) + floor(b) + ceil(a)", 3.5),
        ("exp(0) + sqrt(4) + log(1)", 3.0),
        ("(a + b) / 2", 1.25),
    ],
)
def test_formulas(text: str, value: float) -> None:
    assert formula(text, ("a", "b")).value({"a": 0.5, "b": 2.0}) == pytest.approx(value)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "a +",
        "a; b",
        "c",
        "a.real",
        "a[0]",
        "__import__('os').system('true')",
        "open('x')",
        "min()",
        "log(a, b)",
        "(lambda: 1)()",
        "[a for a in (1,)]",
        "a if b else 0",
        "a < b",
        "'x' * 9",
        "True",
        "min(*a)",
        "min(a, key=b)",
        "a // b",
        "(" * 500 + "a" + ")" * 500,
        "-" * 200 + "a",
        "a" * 10_001,
    ],
)
def test_what_is_no_formula(text: str) -> None:
    with pytest.raises(ConfigError, match="calculate_output") as wrong:
        formula(text, ("a", "b"))
    assert wrong.value.param == "calculate_output"


@pytest.mark.parametrize(
    "text",
    [
        "a / 0",
        "9 ^ 9 ^ 9 ^ 9",
        "log(0)",
        "sqrt(-1)",
        "(-1) ^ 0.5",
        "1e308 * 10",
        "exp(1000)",
        "0 ^ -1",
        "floor(1e999)",
    ],
)
def test_a_formula_without_a_value(text: str) -> None:
    with pytest.raises(ArithmeticError):
        formula(text, ("a",)).value({"a": 1.0})


def multi(calculate_output: str) -> dict[str, Any]:
    similarity = {
        "type": "text_similarity",
        "name": "near",
        "input": "{{ sample.output_text }}",
        "reference": "{{ item.answer }}",
        "evaluation_metric": "fuzzy_match",
    }
    exact = {
        "type": "string_check",
        "name": "exact",
        "input": "{{ sample.output_text }}",
        "reference": "{{ item.answer }}",
        "operation": "eq",
    }
    return {
        "type": "multi",
        "name": "all",
        "graders": {"near": similarity, "exact": exact},
        "calculate_output": calculate_output,
    }


def test_multi_logs_each_of_its_graders() -> None:
    found = score(multi("0.25 * near + 0.75 * exact"), "Lim")
    assert found.parts == {"near": pytest.approx(6 / 7), "exact": 0.0}
    assert found.total == pytest.approx(0.25 * 6 / 7)
    assert score(multi("0.25 * near + 0.75 * exact"), "Lima").total == 1


def test_multi_without_a_value_is_an_error_and_no_zero() -> None:
    found = score(multi("near / exact"), "Lim")
    assert (found.outcome, found.total) == ("error", 0.0)
    assert "near / exact" in found.detail
    assert math.isclose(found.parts["near"], 6 / 7)


def test_the_types_of_openai_s_library_are_taken_as_they_are() -> None:
    graders = pytest.importorskip("openai.types.graders")
    one = graders.StringCheckGrader(
        input="{{ sample.output_text }}", name="same", operation="eq", reference="Lima", type="string_check"
    )
    assert score(json.loads(one.model_dump_json()), "Lima").total == 1
    alone = graders.MultiGrader(calculate_output="same * 2", graders=one, name="all", type="multi")
    assert score(json.loads(alone.model_dump_json()), "Lima").total == 2
