"""Tasks from files and data sets of the Hugging Face Hub: prompts, reference answers and a grader."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rondo.base.errors import ConfigError, InvalidRequest, RondoError
from rondo.base.storage.hashing import sha256_json
from rondo.data.input.formats import SUFFIXES
from rondo.data.input.records import Record
from rondo.data.input.sources import read_source
from rondo.data.storage.places import hub_dataset
from rondo.graders import Grader, Sample, Score
from rondo.graders.registry import grader_of
from rondo.graders.score import check_gradable
from rondo.hub.names import HubName
from rondo.rl.tasks.types import Problem, Split, split_of

MAX_TOKENS = 1024
"""Maximum tokens of a sample, unless the job overrides it."""
OWN = ("prompt", "messages", "split", "grader")
"""Fields of a record that define the prompt and the grading; all other fields are passed to graders as `item`."""
PROMPTS = ("question", "problem")
"""Fields with the prompt in records without `prompt` and `messages`, as in GSM8K and MATH; the first one is used."""
ANSWERS = ("answer", "reference_answer", "reference")
"""Fields with the reference answer; the first one present is used."""


@dataclass(frozen=True)
class FileTask:
    """A task from a file. The held-out split is selected by the hash of the prompt, independently of other records."""

    name: str
    problems: Mapping[Split, tuple[Problem, ...]]
    fingerprint: str
    grader: Grader | None
    own_graders: Mapping[str, Grader]
    """Graders of individual records, by their JSON."""
    max_tokens: int = MAX_TOKENS

    def prompts(self, seed: int, n: int, split: Split = "train") -> list[Problem]:
        """Problems sampled without replacement, repeated only when all have been drawn. The held-out split never
        repeats.
        """
        known = self.problems[split]
        source = random.Random(f"{self.name}:{split}:{seed}")
        drawn: list[Problem] = []
        while len(drawn) < (n if split == "train" else min(n, len(known))):
            drawn += source.sample(known, min(n - len(drawn), len(known)))
        return drawn

    async def score(self, sample: Sample) -> Score:
        own = sample.metadata.get("grader")
        grader = self.grader if own is None else self.own_graders[_key(own)]
        assert grader is not None, "reading the file has seen that each record has one"
        item = sample.metadata["item"]
        return await grader.score(
            replace(sample, reference=_reference(item), metadata={**item, **sample.metadata})
        )


def read_task(file: str, grader: Mapping[str, Any], max_broken: int = 0) -> FileTask:
    """Read a task from a file or a data set. `grader` applies to records without their own grader. A malformed line
    raises an error with its line number.
    """
    if dataset_task(file) is None and not Path(file).is_file():
        raise ConfigError(f"There is no file {file} to read the task from.", param="rl.task")
    reader = _Reader(grader)
    records = read_source(file, max_broken=max_broken, convert=reader.checked).records
    problems: dict[Split, list[Problem]] = {"train": [], "held_out": []}
    for record in records:
        problem = _problem(record)
        problems[record.get("split") or split_of(problem.question)].append(problem)
    for split, found in problems.items():
        if not found:
            raise InvalidRequest(
                f"{file}: none of its {len(records)} prompts is in the split {split}, which is chosen by their hashes. "
                f'Give some records "split": "{split}", or add more.',
                param="rl.task",
            )
    known: dict[Split, tuple[Problem, ...]] = {split: tuple(found) for split, found in problems.items()}
    dataset = dataset_task(file)
    name = Path(file if dataset is None else dataset.repo).name.partition(".")[0]
    hashed = sha256_json({"records": records, "grader": dict(grader)})
    return FileTask(name, known, hashed, reader.general, reader.own)


class _Reader:
    """Checks records during reading, so that errors contain line numbers."""

    def __init__(self, grader: Mapping[str, Any]) -> None:
        self.spec = grader
        self.general = grader_of(grader, "rl.grader") if grader else None
        self.own: dict[str, Grader] = {}
        self._splits: dict[str, str] = {}

    def checked(self, record: Record) -> tuple[Record | None, str]:
        """The record, or None and its problem."""
        if not {"prompt", "messages"} & record.keys() and (alias := _alias(record)) is not None:
            record = {**record, "prompt": record[alias]}
        problem = self._prompt(record) or self._split(record) or self._grader(record)
        return (None, problem) if problem else (record, "")

    def _prompt(self, record: Record) -> str | None:
        if ("prompt" in record) == ("messages" in record):
            return 'a record has a "prompt" or "messages" (or a "question" or "problem"), one of them'
        if "prompt" in record:
            return None if isinstance(record["prompt"], str) and record["prompt"] else '"prompt" must be text'
        messages = record["messages"]
        if not isinstance(messages, list) or not messages:
            return '"messages" must be a list with at least one message'
        for at, message in enumerate(messages):
            if not isinstance(message, dict) or not isinstance(message.get("role"), str):
                return f'messages[{at}] must be an object with a "role"'
            if not isinstance(message.get("content"), str):
                return f'messages[{at}]: "content" must be text'
        return 'the last of "messages" is the assistant\'s' if messages[-1]["role"] == "assistant" else None

    def _split(self, record: Record) -> str | None:
        """Reject a prompt that is in both splits, because it would be both trained on and evaluated."""
        split = record.get("split")
        if split not in (None, "train", "held_out"):
            return f'"split" is {split!r}; it must be train or held_out'
        question = _problem(record).question
        into = split or split_of(question)
        if self._splits.setdefault(question, into) != into:
            return f"the same prompt is in the split {self._splits[question]} already"
        return None

    def _grader(self, record: Record) -> str | None:
        spec = record.get("grader")
        try:
            if spec is None and self.general is None:
                return (
                    'no "grader" in this record, and rl.grader is not set: --rl.grader=\'{"type": "math"}\''
                )
            if spec is not None and _key(spec) not in self.own:
                self.own[_key(spec)] = grader_of(spec)
            grader = self.general if spec is None else self.own[_key(spec)]
            assert grader is not None
            _check_record(grader, spec or self.spec, record)
        except RondoError as error:
            return error.message
        return None


def _check_record(grader: Grader, spec: Any, record: Record) -> None:
    """Raises if the record lacks what its grader needs for any answer."""
    item = _problem(record).facts["item"]
    reference = _reference(item)
    try:
        check_gradable(grader, Sample("", "", reference, {**item, "item": item}))
    except InvalidRequest as error:
        kind = spec.get("type") if isinstance(spec, Mapping) else None
        if reference is None and error.param == "reference":
            raise InvalidRequest(
                f'no "answer" in this record, with which the {kind} grader compares; its fields are '
                f"{', '.join(record)}. {' and '.join(ANSWERS[1:])} are read too",
                param="answer",
            ) from None
        raise InvalidRequest(
            f"the {kind} grader cannot judge answers to this record: {error.message}"
        ) from None


def _alias(record: Record) -> str | None:
    return next((name for name in PROMPTS if isinstance(record.get(name), str)), None)


def dataset_task(name: str) -> HubName | None:
    """The data set of the Hugging Face Hub that a task's name selects; None for a file, `file.py:attribute`, ..."""
    return None if name.partition(":")[0].endswith(".py") else hub_dataset(name, SUFFIXES)


def _problem(record: Record) -> Problem:
    item = {name: value for name, value in record.items() if name not in OWN}
    facts = {"item": item} | ({"grader": record["grader"]} if record.get("grader") is not None else {})
    if "prompt" in record:
        return Problem(record["prompt"], facts)
    messages = tuple(record["messages"])
    alone = len(messages) == 1 and messages[0]["role"] == "user"
    question = messages[0]["content"] if alone else json.dumps(messages, ensure_ascii=False)
    return Problem(question, facts, messages)


def _reference(item: Mapping[str, Any]) -> str | tuple[str, ...] | None:
    """The reference answer, or several correct answers. Numbers are converted to their JSON text."""
    found = next((item[name] for name in ANSWERS if item.get(name) is not None), None)
    if found is None or isinstance(found, str):
        return found
    if isinstance(found, list) and found and all(_is_answer(each) for each in found):
        return tuple(each if isinstance(each, str) else json.dumps(each) for each in found)
    if _is_answer(found):
        return json.dumps(found)
    raise InvalidRequest("an answer must be text, a number, or a list of them", param="answer")


def _is_answer(value: Any) -> bool:
    return isinstance(value, str | int | float) and not isinstance(value, bool)


def _key(spec: Any) -> str:
    return json.dumps(spec, sort_keys=True)
