"""Conversion of each data format to the record forms of `records.py`: text, messages, prompt and completion, judged
answers. Records that have such a form already stay unchanged, and so does the hash of the data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

from rondo.data.input.detection import (
    CONTEXTS,
    CONVERSATIONS,
    LABELS,
    NAMES,
    PROMPTS,
    SYSTEMS,
    TOOLS,
    DetectedFormat,
    FormatName,
    detect,
    detect_as,
    explain,
    first_of,
)
from rondo.data.input.records import PAIR, Record, check_record
from rondo.data.input.turns import Message, RecordProblem, from_transcript, messages_of, string_of, tools_of


class RecordConverter:
    """Converts the records of one file, all of the same format: the given one, or that of the first record."""

    def __init__(self, format: FormatName | None = None) -> None:
        self._given = format
        self.detected: DetectedFormat | None = None

    def __call__(self, record: Record) -> tuple[Record | None, str]:
        """The converted record, or None and its problem."""
        if self.detected and self.detected.name == "chat" and is_plain_chat(record):
            return record, ""
        found = detect_as(self._given, record) if self._given else detect(record)
        if found is None:
            return None, explain(record, self._given or (self.detected.name if self.detected else None))
        if self.detected and found.name != self.detected.name:
            return None, (
                f"this record is {found}; the file began with {self.detected}. A file has one format: split it "
                "by format, and give each file with its own --data"
            )
        try:
            converted = convert(found, record)
        except RecordProblem as error:
            return None, str(error)
        if problem := check_record(converted):
            return None, problem
        self.detected = found if self.detected is None else self.detected.united(found)
        return converted, ""


def is_plain_chat(record: Record) -> bool:
    """Whether the record is a valid one of `records.py` already, with messages of text alone. Most records of large
    files are, and this check is a fraction of their conversion."""
    if not _has_only_messages(tuple(record)) or type(turns := record["messages"]) is not list:
        return False
    learned = False
    for turn in turns:
        if type(turn) is not dict or len(turn) != 2 or type(turn.get("content")) is not str:
            return False
        role = turn.get("role")
        if type(role) is not str or role == "function":
            return False
        learned = learned or role == "assistant"
    return learned


@lru_cache(256)
def _has_only_messages(names: tuple[str, ...]) -> bool:
    """Whether `messages` is the only field that a format reads."""
    return [name for name in names if name in NAMES] == ["messages"]


def convert(found: DetectedFormat, record: Mapping[str, Any]) -> Record:
    """Raises RecordProblem for values of wrong types."""
    match found.name:
        case "preference":
            return _preference(record)
        case "labelled":
            return _labelled(record)
        case "chat" | "sharegpt":
            return _conversation(found.required[0], record)
        case "prompt-completion":
            return _prompt_completion(record)
        case "alpaca" | "question-answer":
            question, answer = found.required
            return _with_tools(
                [*_prompt(record, question), *_turns(record[answer], answer, "assistant")], record
            )
        case "text":
            return _document(found.required[0], record)


def _document(name: str, record: Mapping[str, Any]) -> Record:
    """A text; the label of a classified text is no judgement of an answer."""
    others = {each: value for each, value in record.items() if each not in (name, *LABELS)}
    return {"text": record[name], **others}


def _with_tools(messages: Sequence[Message], record: Mapping[str, Any]) -> Record:
    tools = tools_of(record)
    return {"messages": list(messages)} | ({"tools": tools} if tools else {})


def _conversation(name: str, record: Mapping[str, Any]) -> Record:
    messages, tools = _prompt(record, name), tools_of(record)
    if messages != record.get("messages"):
        return _with_tools(messages, record)
    others = {each: value for each, value in record.items() if each not in (*TOOLS, *LABELS)}
    return others | ({"tools": tools} if tools else {})


def _prompt(record: Mapping[str, Any], name: str) -> list[Message]:
    """The messages of a prompt: a system message, earlier turns in `history`, the question with its context."""
    turns = _turns(record[name], name, "user")
    if not isinstance(record[name], list):
        given = [record[each] for each in CONTEXTS if each != name and record.get(each)]
        turns[-1]["content"] = "\n".join(
            [turns[-1]["content"], *(string_of(each, "input") for each in given)]
        )
    if turns[0]["role"] == "system":
        return turns
    return [*_opening(record), *turns]


def _opening(record: Mapping[str, Any]) -> list[Message]:
    messages: list[Message] = []
    system = next((name for name in SYSTEMS if record.get(name)), None)
    if system:
        messages.append({"role": "system", "content": string_of(record[system], system)})
    history = record.get("history") or []
    if not isinstance(history, list) or not all(
        isinstance(turn, list) and len(turn) == 2 for turn in history
    ):
        raise RecordProblem('"history" must be a list of pairs: [["question", "answer"], ...]')
    for turn in history:
        messages += [{"role": "user", "content": turn[0]}, {"role": "assistant", "content": turn[1]}]
    return messages


def _turns(value: Any, name: str, role: str) -> list[Message]:
    """Messages of a field: a list of turns, a single turn, or a string by `role`."""
    if isinstance(value, Mapping):
        value = [value]
    if isinstance(value, list):
        return messages_of(value, name)
    return [{"role": role, "content": string_of(value, name)}]


def _prompt_completion(record: Mapping[str, Any]) -> Record:
    """Strings stay as they are, without a chat template. Of two lists of messages only the second is learned."""
    if not any(isinstance(record[name], list) for name in ("prompt", "completion")):
        return dict(record)
    context = [
        {**each, "weight": 0} if each["role"] == "assistant" else each for each in _prompt(record, "prompt")
    ]
    return _with_tools([*context, *_turns(record["completion"], "completion", "assistant")], record)


def _preference(record: Mapping[str, Any]) -> Record:
    answers = {name: from_transcript(record[name]) or record[name] for name in PAIR}
    name = first_of(record, (*CONVERSATIONS, *PROMPTS))
    if name and _is_canonical(record, name, answers.values()):
        return dict(record)
    turns = {label: _turns(answer, label, "assistant") for label, answer in answers.items()}
    chosen, rejected = turns.values()
    if chosen[:-1] != rejected[:-1]:
        raise RecordProblem(
            '"chosen" and "rejected" differ before their last turn: they must answer the same prompt'
        )
    prompt = _joined(_prompt(record, name) if name else _opening(record), chosen[:-1])
    if not prompt:
        raise RecordProblem('there is no prompt: no "prompt" field, and no turns before the answers')
    return _with_tools(prompt, record) | {label: each[-1:] for label, each in turns.items()}


def _joined(prompt: list[Message], before: list[Message]) -> list[Message]:
    """The prompt and the turns that both answers begin with, which may repeat the prompt."""
    repeated = prompt in (before[: len(prompt)], before[-len(prompt) :])
    return before if repeated else [*prompt, *before]


def _is_canonical(record: Mapping[str, Any], name: str, answers: Any) -> bool:
    """Whether the record has a form of `records.py` already: a text prompt with text answers, without a chat template,
    or messages with answers of one turn."""
    if any(record.get(each) for each in (*SYSTEMS, *CONTEXTS, "functions")):
        return False
    if tools_of(record) != (record.get("tools") or None):
        return False
    if name == "prompt":
        return all(isinstance(each, str) for each in (record[name], *answers))
    plain = all(isinstance(each, str) or _is_one_message(each) for each in answers)
    return name == "messages" and plain and _turns(record[name], name, "user") == record[name]


def _is_one_message(answer: Any) -> bool:
    return (
        isinstance(answer, list) and len(answer) == 1 and isinstance(answer[0], dict) and "role" in answer[0]
    )


def _labelled(record: Mapping[str, Any]) -> Record:
    label = next(name for name in LABELS if name in record)
    good = {"label": _bool(record[label], label)}
    name = first_of(record, (*CONVERSATIONS, *PROMPTS))
    if name is None:
        raise RecordProblem('there is no "prompt" or "messages" before the completion')
    if "completion" not in record:
        turns = _prompt(record, name)
        return _with_tools(turns[:-1], record) | {"completion": turns[-1:]} | good
    if _is_canonical(record, name, [record["completion"]]):
        return {each: value for each, value in record.items() if each not in LABELS} | good
    completion = _turns(record["completion"], "completion", "assistant")
    prompt = _joined(_prompt(record, name), completion[:-1])
    return _with_tools(prompt, record) | {"completion": completion[-1:]} | good


def _bool(value: Any, name: str) -> bool:
    words = {"true": True, "1": True, "false": False, "0": False}
    found = words.get(str(value).strip().lower())
    if found is None:
        raise RecordProblem(f'"{name}" must be true or false, not {value!r}')
    return found
