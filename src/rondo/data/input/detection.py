"""Detection of a record's format from the names and types of its fields: Alpaca, ShareGPT, OpenAI chat and others.

`detect` is a pure function. `conversion.py` converts each format to the record forms of `records.py`.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Literal, get_args

from rondo.data.input.records import PAIR

FormatName = Literal[
    "preference",
    "labelled",
    "chat",
    "sharegpt",
    "prompt-completion",
    "alpaca",
    "question-answer",
    "text",
]
"""In the order of detection: a format precedes those whose fields its records may have too."""

FORMAT_NAMES: tuple[FormatName, ...] = get_args(FormatName)
CONVERSATIONS = ("messages", "conversations", "conversation", "dialogue")
"""Fields with a list of turns."""
LABELS = ("label", "kto_tag")
SYSTEMS = ("system", "system_prompt")
TOOLS = ("tools", "functions")
QUESTION_ANSWER = (
    ("instruction", "response"),
    ("question", "answer"),
    ("question", "response"),
    ("question", "solution"),
    ("query", "response"),
    ("query", "answer"),
    ("problem", "solution"),
    ("problem", "answer"),
    ("prompt", "response"),
    ("prompt", "answer"),
    ("prompt", "output"),
    ("input", "output"),
    ("user", "assistant"),
)
"""Field names of a question and its answer in published data sets."""
PROMPTS = ("prompt", "question", "instruction", "query")
"""Fields with the prompt of a preference pair or a labelled answer."""
CONTEXTS = ("context", "input")
"""Fields whose text follows the question."""


@dataclass(frozen=True)
class FormatSpec:
    title: str
    required: tuple[str, ...]
    optional: tuple[str, ...]
    example: str


FORMATS: dict[FormatName, FormatSpec] = {
    "chat": FormatSpec(
        "OpenAI chat",
        ("messages",),
        TOOLS,
        '{"messages": [{"role": "user", "content": "..."}, {"role": "assistant", "content": "..."}]}',
    ),
    "sharegpt": FormatSpec(
        "ShareGPT",
        ("conversations",),
        ("system", "tools"),
        '{"conversations": [{"from": "human", "value": "..."}, {"from": "gpt", "value": "..."}]}',
    ),
    "alpaca": FormatSpec(
        "Alpaca",
        ("instruction", "output"),
        ("input", "system", "history"),
        '{"instruction": "...", "input": "...", "output": "..."}',
    ),
    "prompt-completion": FormatSpec(
        "prompt/completion",
        ("prompt", "completion"),
        ("tools",),
        '{"prompt": "...", "completion": "..."}',
    ),
    "question-answer": FormatSpec(
        "question/answer",
        ("question", "answer"),
        (*SYSTEMS, *CONTEXTS),
        '{"question": "...", "answer": "..."}',
    ),
    "preference": FormatSpec(
        "preference pair",
        PAIR,
        (*SYSTEMS, "input", *TOOLS),
        '{"prompt": "...", "chosen": "...", "rejected": "..."}',
    ),
    "labelled": FormatSpec(
        "labelled answer",
        ("completion", "label"),
        (*SYSTEMS, "input", *TOOLS),
        '{"prompt": "...", "completion": "...", "label": true}',
    ),
    "text": FormatSpec("plain text", ("text",), (), '{"text": "..."}'),
}
NAMES = frozenset(
    {
        *(name for spec in FORMATS.values() for name in (*spec.required, *spec.optional)),
        *(name for pair in QUESTION_ANSWER for name in pair),
        *CONVERSATIONS,
        *LABELS,
        *PROMPTS,
        "content",
    }
)
"""Every field that a format reads."""


@dataclass(frozen=True)
class DetectedFormat:
    name: FormatName
    required: tuple[str, ...]
    """Fields that define the format, such as the question and the answer."""
    fields: tuple[str, ...]
    """All fields that are read, in the record's order."""

    def united(self, other: DetectedFormat) -> DetectedFormat:
        """The same format with the fields of both."""
        if other.fields == self.fields:
            return self
        return replace(self, fields=tuple(dict.fromkeys((*self.fields, *other.fields))))

    def __str__(self) -> str:
        return f"{FORMATS[self.name].title}: {', '.join(self.fields)}"


def detect(record: Mapping[str, Any]) -> DetectedFormat | None:
    """The format of a record; None if its fields fit none."""
    if any(name in record for name in CONVERSATIONS):
        return next((found for name in FORMAT_NAMES if (found := detect_as(name, record))), None)
    known = _format_of_names(tuple(record))
    return detect_as(known, record) if known else None


@lru_cache(256)
def _format_of_names(names: tuple[str, ...]) -> FormatName | None:
    """The format of records without turns, which depends on the names of their fields alone."""
    record = dict.fromkeys(names)
    return next((name for name in FORMAT_NAMES if _REQUIRED[name](record)), None)


def detect_as(name: FormatName, record: Mapping[str, Any]) -> DetectedFormat | None:
    """The fields of a record that a given format reads; None if a required one is missing."""
    required = _REQUIRED[name](record)
    if not required:
        return None
    given = [each for each in FORMATS[name].optional if record.get(each) not in (None, "", [])]
    return DetectedFormat(name, required, tuple(each for each in record if each in (*required, *given)))


def first_of(record: Mapping[str, Any], names: Iterable[str]) -> str | None:
    """The first of the names that the record has."""
    return next((name for name in names if name in record), None)


def turns_of(record: Mapping[str, Any], key: str) -> str | None:
    """The field with turns that have `key`: `role` of OpenAI or `from` of ShareGPT."""
    for name in CONVERSATIONS:
        turns = record.get(name)
        if isinstance(turns, list) and turns and isinstance(turns[0], Mapping) and key in turns[0]:
            return name
    return None


def _preference(record: Mapping[str, Any]) -> tuple[str, ...]:
    return _after_prompt(record, PAIR) if all(name in record for name in PAIR) else ()


def _labelled(record: Mapping[str, Any]) -> tuple[str, ...]:
    label, turns = first_of(record, LABELS), first_of(record, CONVERSATIONS)
    if label is None:
        return ()
    if "completion" in record:
        return _after_prompt(record, ("completion", label))
    return (turns, label) if turns and isinstance(record[label], bool) else ()


def _after_prompt(record: Mapping[str, Any], answers: tuple[str, ...]) -> tuple[str, ...]:
    prompt = first_of(record, (*CONVERSATIONS, *PROMPTS))
    return (prompt, *answers) if prompt else answers


def _chat(record: Mapping[str, Any]) -> tuple[str, ...]:
    if name := turns_of(record, "role"):
        return (name,)
    return ("messages",) if "messages" in record and not turns_of(record, "from") else ()


def _sharegpt(record: Mapping[str, Any]) -> tuple[str, ...]:
    name = turns_of(record, "from") or first_of(record, CONVERSATIONS[1:])
    return (name,) if name else ()


def _all_of(*names: str) -> Callable[[Mapping[str, Any]], tuple[str, ...]]:
    return lambda record: names if all(name in record for name in names) else ()


def _question_answer(record: Mapping[str, Any]) -> tuple[str, ...]:
    return next((pair for pair in QUESTION_ANSWER if all(name in record for name in pair)), ())


def _text(record: Mapping[str, Any]) -> tuple[str, ...]:
    if "text" in record:
        return ("text",)
    known = [name for name in record if name in NAMES]
    return ("content",) if known == ["content"] else ()


_REQUIRED: dict[FormatName, Callable[[Mapping[str, Any]], tuple[str, ...]]] = {
    "preference": _preference,
    "labelled": _labelled,
    "chat": _chat,
    "sharegpt": _sharegpt,
    "prompt-completion": _all_of("prompt", "completion"),
    "alpaca": _all_of("instruction", "output"),
    "question-answer": _question_answer,
    "text": _text,
}


@dataclass(frozen=True)
class NearestFormat:
    name: FormatName
    missing: tuple[str, ...]
    renames: tuple[tuple[str, str], ...]
    """(field of the record, required field) with similar names."""


def nearest(record: Mapping[str, Any], name: FormatName | None = None) -> NearestFormat:
    """The format with the most required fields in the record, misspelled ones included; or the given format."""
    found = [_compare(record, each) for each in ((name,) if name else FORMAT_NAMES)]
    return max(found, key=lambda each: _likeness(record, each))


def _compare(record: Mapping[str, Any], name: FormatName) -> NearestFormat:
    required = FORMATS[name].required
    missing = tuple(each for each in required if each not in record)
    free = [each for each in record if each not in NAMES]
    renames = []
    for each in missing:
        near = difflib.get_close_matches(each, free, 1, 0.75)
        renames += [(near[0], each)] if near else []
    return NearestFormat(name, missing, tuple(renames))


def _likeness(record: Mapping[str, Any], near: NearestFormat) -> tuple[float, int]:
    spec = FORMATS[near.name]
    present = len(spec.required) - len(near.missing) + 0.9 * len(near.renames)
    return present / len(spec.required), sum(name in record for name in spec.optional)


def explain(record: Mapping[str, Any], name: FormatName | None = None) -> str:
    """Error for a record of no known format, or not of the given one: its fields, the nearest format, the remedy."""
    near = nearest(record, name)
    spec = FORMATS[near.name]
    fields = ", ".join(map(str, record)) or "none"
    if name is None and len(near.missing) == len(spec.required) and not near.renames:
        known = "; ".join(f"{each.title} ({', '.join(each.required)})" for each in FORMATS.values())
        first = next(iter(record), "body")
        known += f". Name the fields: {_renaming([(first, 'text')])}"
        return f"no format has these fields: {fields}. Formats: {known}"
    lacks = " and ".join(f'no "{each}"' for each in near.missing) or "no record of this format"
    which = "The nearest format" if name is None else "The format"
    error = f"{lacks} in this record; its fields are {fields}. {which} is {spec.title}: {spec.example}"
    if near.renames:
        error += f". Name the fields: {_renaming(near.renames)}"
    return error


def _renaming(renames: Iterable[tuple[str, str]]) -> str:
    """The flags for (field of the record, required field)."""
    pairs = list(renames)
    flags = " ".join(f"--field {wanted}={own}" for own, wanted in pairs)
    setting = json.dumps({wanted: own for own, wanted in pairs}, ensure_ascii=False)
    return f"--train.loader.fields='{setting}', or {flags} of `rondo data`"
