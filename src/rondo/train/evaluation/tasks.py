"""Tasks from JSON Lines files: multiple choice and generated answers."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any

from rondo.base.errors import InvalidRequest
from rondo.data.storage.places import find_files, open_file
from rondo.graders import AnswerMatcher
from rondo.text.tokenizer import Tokenizer
from rondo.train.recipes.sft import through_end, turn

FIELDS = {"task", "prompt", "messages", "choices", "answer", "stop", "extract", "compare", "tolerance"}
SUFFIXES = (".jsonl", ".ndjson")


@dataclass(frozen=True)
class MultipleChoice:
    """A multiple-choice task: the most likely answer counts as the model's choice."""

    task: str
    prompt: list[int]
    answers: list[list[int]]
    lengths: list[int]
    """Lengths of the answers in characters."""
    right: int


@dataclass(frozen=True)
class Question:
    """A task whose answer the model generates."""

    task: str
    prompt: list[int]
    text: str
    right: tuple[str, ...]
    stop: tuple[str, ...]
    matcher: AnswerMatcher


Task = MultipleChoice | Question


def read_tasks(sources: str | Sequence[str], tokenizer: Tokenizer) -> list[Task]:
    """Reads tasks from files. A task's name is the field `task` of its record, or else the file's name."""
    found: list[Task] = []
    for source in [sources] if isinstance(sources, str) else sources:
        for file in find_files(source, SUFFIXES):
            with open_file(file.name) as lines:
                for number, line in enumerate(lines, 1):
                    if line.strip():
                        found.append(_read(line, tokenizer, file.name, number))
    if sources and not found:
        raise InvalidRequest(f"{sources} holds no task", param="train.evaluate.tasks")
    return found


def _read(line: bytes, tokenizer: Tokenizer, file: str, number: int) -> Task:
    try:
        record = json.loads(line)
        if not isinstance(record, dict):
            raise ValueError("it is no JSON object")
        return _task(record, tokenizer, record.get("task") or PurePath(file).stem)
    except InvalidRequest as error:
        raise InvalidRequest(
            f"{file}, line {number}: {error.message}", param="train.evaluate.tasks"
        ) from error
    except (ValueError, KeyError, TypeError) as error:
        raise InvalidRequest(f"{file}, line {number}: {error}", param="train.evaluate.tasks") from error


def _task(record: dict[str, Any], tokenizer: Tokenizer, name: str) -> Task:
    _check(record)
    if "choices" in record:
        return _choice(record, tokenizer, name)
    return _question(record, tokenizer, name)


def _check(record: dict[str, Any]) -> None:
    unknown = sorted(record.keys() - FIELDS)
    if unknown:
        raise ValueError(f"{unknown[0]!r} is not a field of a task, which has {', '.join(sorted(FIELDS))}")
    if isinstance(record.get("prompt"), str) == isinstance(record.get("messages"), list):
        raise ValueError('a task has either a "prompt" that is a string, or "messages"')
    if "answer" not in record:
        raise ValueError('there is no "answer"')


def _choice(record: dict[str, Any], tokenizer: Tokenizer, name: str) -> MultipleChoice:
    choices, right = record["choices"], record["answer"]
    if (
        not isinstance(choices, list)
        or len(choices) < 2
        or not all(isinstance(x, str) and x for x in choices)
    ):
        raise ValueError('"choices" must be a list of two or more texts')
    if not isinstance(right, int) or isinstance(right, bool) or not 0 <= right < len(choices):
        raise ValueError(f'"answer" must be the number of a choice, from 0 to {len(choices) - 1}')
    if "prompt" in record:
        prompt = tokenizer.encode(record["prompt"])
        answers = [tokenizer.encode(choice, add_special=False) for choice in choices]
    else:
        turns = [
            turn(tokenizer, record["messages"], {"role": "assistant", "content": choice})
            for choice in choices
        ]
        prompt = tokenizer.encode(turns[0][0], add_special=False)
        said = [tokenizer.encode(text, add_special=False) for _, text in turns]
        answers = [ids[: through_end(ids, tokenizer.eos_ids)] for ids in said]
    if not prompt:
        raise ValueError("the prompt has no token: begin it with something")
    return MultipleChoice(name, prompt, answers, [len(choice) for choice in choices], right)


def _question(record: dict[str, Any], tokenizer: Tokenizer, name: str) -> Question:
    right, stop = record["answer"], record.get("stop", [])
    right = (right,) if isinstance(right, str) else tuple(right)
    stop = (stop,) if isinstance(stop, str) else tuple(stop)
    if not right or not all(isinstance(x, str) for x in (*right, *stop)):
        raise ValueError('"answer" must be a text or a list of texts, and so must "stop"')
    matcher = AnswerMatcher(
        record.get("extract", "all"), record.get("compare", "normalised"), record.get("tolerance", 0.0)
    )
    for text in right:
        matcher.equal(text, text)  # raises an error if a reference is not a number
    if "prompt" in record:
        return Question(name, tokenizer.encode(record["prompt"]), record["prompt"], right, stop, matcher)
    messages = record["messages"]
    text = str(messages[-1].get("content", "")) if messages else ""
    return Question(name, tokenizer.apply_chat(messages), text, right, stop, matcher)
