"""Tokens of reasoning, counted beside a parser that reads every one of them."""

import random

import pytest

from rondo.server.answers.thoughts import ThoughtCount
from rondo.text.parsing import ToolCallFormat

THINK = "<think>\n\nSo 1 < 2, and </thin is no end, <| neither. \u20ac </think>\n\nYes, <think>."
HARMONY = (
    "<|channel|>analysis<|message|>So 1 < 2,<|endif|> and so on<|end|><|start|>assistant<|channel|>final<|message|>Yes"
    "<|end|><|start|>assistant<|channel|>analysis<|message|>More.<|return|>"
)
ANSWERS = {
    "a pair of markers": (ToolCallFormat(None, "qwen3"), "", THINK),
    "opened by the prompt": (ToolCallFormat(None, "qwen3"), "<think>\n", THINK.removeprefix("<think>")),
    "always": (ToolCallFormat(None, "deepseek_r1"), "", "Hm </think> Yes"),
    "never": (ToolCallFormat(None, "qwen3"), "", "Yes, and <think> no more </think>"),
    "bracketed": (ToolCallFormat(None, "mistral"), "", "[THINK]a[0] = [/THIS][/THINK]Yes"),
    "harmony": (ToolCallFormat("openai"), "", HARMONY),
    "calls alone": (ToolCallFormat("hermes"), "", "<think>Hm</think>"),
}


def cut(text, rng):
    """As tokens cut it: most are of several characters, and markers are one or many."""
    pieces = []
    while text:
        size = rng.choice((1, 2, 5, 12))
        pieces.append(text[:size])
        text = text[size:]
    return pieces


def counted_by_reading_all(parser, pieces):
    count = 0
    for piece in pieces:
        before = parser.reasons
        parser.feed(piece)
        count += before and parser.reasons
    return count


@pytest.mark.parametrize("name", ANSWERS)
def test_what_is_not_parsed_would_have_changed_nothing(name):
    dialect, prompt, text = ANSWERS[name]
    rng = random.Random(name)
    for _ in range(300):
        pieces = cut(text, rng)
        count = ThoughtCount(dialect.parser(prompt), dict(enumerate(pieces)))
        count.add(range(len(pieces) // 2))
        count.add(range(len(pieces) // 2, len(pieces)))
        assert count.tokens == counted_by_reading_all(dialect.parser(prompt), pieces), pieces


def test_most_of_it_is_not_parsed(monkeypatch):
    parser = ToolCallFormat(None, "qwen3").parser("")
    fed, feed = [], parser.feed
    monkeypatch.setattr(parser, "feed", lambda text: (fed.append(text), feed(text))[1])
    pieces = ["<think>", *["so "] * 100, "</", "think>", "Yes"]
    count = ThoughtCount(parser, dict(enumerate(pieces)))
    count.add(range(len(pieces)))
    assert count.tokens == 101  # The first half of the marker may still be reasoning.
    assert fed == ["<think>", "</", "think>"]
