"""The form of a completion."""

import asyncio
from typing import Any

import pytest

from rondo.base.errors import ConfigError
from rondo.graders import FormatChecker, Sample, Score
from rondo.graders.format import has_tags, tag_content


def score(completion: str, **options: Any) -> Score:
    return asyncio.run(FormatChecker(**options).score(Sample("", completion)))


@pytest.mark.parametrize(
    ("text", "content"),
    [
        ("<answer> 4\n</answer>", "4"),
        ("<answer>1</answer> no, <answer>2</answer>", "2"),
        ("<answer>1</answer> <answer>2", "1"),
        ("</answer><answer>", None),
        ("", None),
    ],
)
def test_tag_content(text: str, content: str | None) -> None:
    assert tag_content(text, "answer") == content


@pytest.mark.parametrize(
    ("text", "fine"),
    [
        ("<think>a</think><answer>b</answer>", True),
        ("x <think></think> y <answer></answer> z", True),
        ("<answer>b</answer><think>a</think>", False),
        ("<think><answer>b</answer></think>", False),
        ("<think>a</think>", False),
        ("<think>a</think><answer>b</answer><answer>c</answer>", False),
        ("</think><think><answer>b</answer>", False),
    ],
)
def test_tags_in_their_order(text: str, fine: bool) -> None:
    assert has_tags(text, ("think", "answer")) is fine


def test_each_rule_is_a_part() -> None:
    good = score("<answer>4</answer>", pattern=r"<answer>\d</answer>", tags=("answer",), max_characters=50)
    assert good == Score("ok", 1.0, {"pattern": 1.0, "tags": 1.0, "length": 1.0}, "")
    poor = score("4" * 51, tags=("answer",), max_characters=50)
    assert poor == Score("ok", 0.0, {"tags": 0.0, "length": 0.0}, "failed: tags, length")
    assert score("no tags", tags=("answer",), max_characters=50).total == 0.5


def test_the_pattern_is_for_the_whole_and_spans_lines() -> None:
    assert score("a\nb", pattern="a.b").total == 1
    assert score("a\nb!", pattern="a.b").total == 0


def test_a_checker_without_a_rule_or_with_a_broken_one() -> None:
    with pytest.raises(ConfigError, match="needs a rule"):
        FormatChecker()
    with pytest.raises(ConfigError, match="regular expression"):
        FormatChecker(pattern="(")
