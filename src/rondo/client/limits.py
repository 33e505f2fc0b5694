"""Value ranges of the fields of `SamplingParams`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

MAX_LOGPROBS = 100
MAX_STOP = 16
MAX_SAMPLES = 1024
MAX_BAD_WORDS = 1024
MAX_BAD_CHARACTERS = 64 * 1024
"""Maximum total of all bad words: they are tokenized at once."""
MOST_TOKENS = 2**63 - 1
"""Far more than fit; but a number of hundreds of digits could not be counted, which is done in floats."""


class FieldRule(NamedTuple):
    """Rule of a field, checked unless the field has its default value, which is the common case."""

    field: str
    default: object
    holds: Callable[[Any], bool]
    message: str


def fits(holds: Callable[[Any], bool], value: Any) -> bool:
    """Whether a rule holds; False for a value of the wrong type."""
    try:
        return holds(value)
    except (TypeError, AttributeError):
        return False


def _within(field: str, default: object, low: float, high: float) -> FieldRule:
    return FieldRule(field, default, lambda value: low <= value <= high, f"must be between {low} and {high}")


def _at_most(field: str, most: int, things: str, size: Callable[[Any], int] = len) -> FieldRule:
    return FieldRule(field, (), lambda value: size(value) <= most, f"takes at most {most} {things}")


def _characters(words: Sequence[str]) -> int:
    return sum(map(len, words))


RULES = (
    _within("max_tokens", None, 1, MOST_TOKENS),
    FieldRule("min_tokens", 0, lambda count: count >= 0, "must not be negative"),
    _within("temperature", 1.0, 0, 100),
    FieldRule("top_p", 1.0, lambda share: 0 < share <= 1, "must be in (0, 1]"),
    FieldRule("top_k", 0, lambda count: count >= -1, "must be at least 1; 0 and -1 mean all"),
    FieldRule("min_p", 0.0, lambda share: 0 <= share <= 1, "must be in [0, 1]"),
    _within("n", 1, 1, MAX_SAMPLES),
    _at_most("stop", MAX_STOP, "strings"),
    FieldRule("stop", (), all, "must not hold an empty string"),
    _within("logprobs", None, 0, MAX_LOGPROBS),
    _within("prompt_logprobs", None, 0, MAX_LOGPROBS),
    FieldRule("logprobs_mode", "scaled", lambda mode: mode == "raw", "must be 'scaled' or 'raw'"),
    _within("presence_penalty", 0.0, -2, 2),
    _within("frequency_penalty", 0.0, -2, 2),
    _within("repetition_penalty", 1.0, 0.01, 10),
    FieldRule(
        "logit_bias",
        {},
        lambda biases: all(-100 <= bias <= 100 for bias in biases.values()),
        "must hold numbers between -100 and 100",
    ),
    _at_most("bad_words", MAX_BAD_WORDS, "words"),
    FieldRule("bad_words", (), lambda words: all(map(str.strip, words)), "must not hold an empty word"),
    _at_most("bad_words", MAX_BAD_CHARACTERS, "characters in all", _characters),
    FieldRule("allowed_token_ids", None, bool, "must not be empty"),
    FieldRule(
        "truncate_prompt_tokens",
        None,
        lambda count: count >= 1 or count == -1,
        "must be at least 1, or -1 for as many as fit",
    ),
)
