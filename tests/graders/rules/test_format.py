"""The form of a completion."""

import asyncio
import os
import signal
from typing import Any

import pytest

from graders.garbage import GARBAGE
from rondo.base.errors import ConfigError, MissingExtra
from rondo.graders import FormatChecker, Sample, Score, extras, guarded
from rondo.graders.rules.format import has_tags, tag_content
from rondo.graders.rules.pattern import PatternMatcher


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


CATASTROPHE = FormatChecker(pattern="(a+)+b")


def test_a_catastrophic_pattern_is_a_timeout_and_blocks_nobody() -> None:
    ticks = 0

    async def tick() -> None:
        nonlocal ticks
        while True:
            await asyncio.sleep(0.01)
            ticks += 1

    async def both() -> list[Score]:
        ticking = asyncio.create_task(tick())
        scores = [await CATASTROPHE.score(Sample("", text)) for text in ("a" * 60, "aaab")]
        ticking.cancel()
        return scores

    late, fine = asyncio.run(both())
    assert (late.outcome, late.total) == ("timeout", 0.0)
    assert "CPU time" in late.detail
    assert fine.total == 1
    assert ticks > 10


def test_the_limit_of_a_guarded_checker_is_real() -> None:
    """It comes before the matching process gives up by itself, which says something else."""
    score = asyncio.run(guarded(CATASTROPHE, 0.05).score(Sample("", "a" * 60)))
    assert score.outcome == "timeout"
    assert "within 0.05 s" in score.detail


def test_a_matching_process_that_was_killed_is_replaced() -> None:
    matcher = PatternMatcher()
    assert matcher.fullmatch("a.b", "a\nb")
    assert matcher._worker.pid is not None
    os.kill(matcher._worker.pid, signal.SIGKILL)
    assert not matcher.fullmatch("ab", "abc" * 100_000)
    assert matcher.fullmatch("\ud800.", "\ud800x")
    matcher.close()
    matcher.close()


def test_a_forked_child_has_a_matching_process_of_its_own() -> None:
    checker = FormatChecker(pattern="a|b")
    assert checker.check("a") == {"pattern": True}
    child = os.fork()
    if child == 0:
        os._exit(0 if checker.check("b") == {"pattern": True} else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert checker.check("c") == {"pattern": False}


CITY = {
    "type": "object",
    "properties": {"city": {"type": "string", "pattern": "^[A-Z]"}},
    "required": ["city"],
}
needs_schema = pytest.mark.skipif(
    extras.find_spec("jsonschema_rs") is None, reason="needs jsonschema-rs, which `make test` installs"
)


@needs_schema
@pytest.mark.parametrize(
    ("completion", "fine"),
    [
        ('{"city": "Lima"}', True),
        (' {"city": "Lima", "more": [1]}\n', True),
        ('{"city": "lima"}', False),
        ('{"city": 1}', False),
        ("{}", False),
        ('{"city": "Lima"} and more', False),
        ('{"city": "Lima", "n": NaN}', False),
    ],
)
def test_json_of_a_schema(completion: str, fine: bool) -> None:
    assert score(completion, json_schema=CITY).parts == {"json": float(fine)}
    assert score(f"so <a>{completion}</a>.", json_schema=CITY, json_tag="a").total == float(fine)
    assert score(f"so {completion}.", json_schema=CITY, json_tag="a").total == 0


@needs_schema
@pytest.mark.parametrize("answer", GARBAGE)
def test_garbage_is_no_json_of_a_schema(answer: str) -> None:
    assert score(answer, json_schema=CITY).total == 0


@needs_schema
def test_long_json_and_patterns_that_would_take_for_ever() -> None:
    long = '{"city": "L' + "a" * 10_000_000 + '"}'
    assert score(long, json_schema=CITY).total == 1
    slow = {"type": "string", "pattern": "^(a+)+$"}
    assert score('"' + "a" * 50_000 + '!"', json_schema=slow).total == 0


@needs_schema
@pytest.mark.parametrize(
    "schema",
    [
        {"type": "text"},
        {"pattern": "("},
        {"$ref": "http://127.0.0.1:9/schema"},
        {"$ref": "file:///etc/passwd"},
    ],
)
def test_what_is_no_schema(schema: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="json_schema") as wrong:
        FormatChecker(json_schema=schema)
    assert wrong.value.param == "json_schema"


def test_a_schema_without_the_library_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(extras, "find_spec", lambda name: None)
    with pytest.raises(MissingExtra, match=r"rondo-lab\[graders\]"):
        FormatChecker(json_schema=CITY)
