"""Preview of training examples on standard error: parts with loss are marked by color, or by `|` in the margin."""

from __future__ import annotations

import json
import os
import shutil
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TextIO

from rondo.data.input.records import PAIR, is_learned
from rondo.train.recipes.data import OpenedData, Tokenized
from rondo.train.recipes.preview import PreviewExample, PreviewSegment

MOST_WIDTH = 100
HEAD, TAIL = 3, 2
"""Lines of a longer text that are shown at its start and at its end."""
LEARNED, CONTEXT = "| ", "  "
GREEN, DIM, RESET = "\x1b[32m", "\x1b[2m", "\x1b[0m"


def show_data(opened: OpenedData, stream: TextIO) -> None:
    """One line on each source: its records and their format."""
    held_out = {source.told.source: len(source.records) for source in opened.held_out}
    for source in opened.training:
        if source.index is not None:
            print(
                f"data      {source.told.source}: {source.index.documents:,} prepared documents", file=stream
            )
            continue
        aside = held_out.get(source.told.source, 0) if source.selected is not None else 0
        count = f"{len(source.records):,} records"
        count += f", {aside:,} more held out" if aside else ""
        print(f"data      {source.told.source}: {count}", file=stream)
        print(f"format    {source.read.format}", file=stream)


def show_over_long(tokenized: Tokenized, max_length: int, stream: TextIO) -> None:
    """One line on the examples that were skipped or truncated, if there are any."""
    counts = [
        f"{count:,} examples {word}"
        for count, word in ((tokenized.skipped, "skipped"), (tokenized.truncated, "truncated"))
        if count
    ]
    if counts:
        reason = f"more than train.max_length={max_length} tokens, the longest {tokenized.longest:,}"
        print(f"too long  {' and '.join(counts)}: {reason}", file=stream)


def show_preview(examples: Sequence[PreviewExample], stream: TextIO) -> None:
    """Prints the examples, in at most the width of the terminal."""
    color = stream.isatty() and "NO_COLOR" not in os.environ
    width = min(shutil.get_terminal_size((80, 24)).columns, MOST_WIDTH)
    for line in preview_lines(examples, width, color):
        print(line, file=stream)


def show_records(opened: OpenedData, count: int, stream: TextIO) -> None:
    """Prints the first records without a model: the turns of each, and the answers to learn."""
    sources = [(source, index) for source in opened.training for index in range(len(source.records))]
    examples = [
        PreviewExample(source.place(index), tuple(_turns(source.records[index])))
        for source, index in sources[:count]
    ]
    show_preview(examples, stream)


def _turns(record: Mapping[str, Any]) -> Iterator[PreviewSegment]:
    for message in record.get("messages", ()):
        yield _turn(message["role"], message, is_learned(message))
    for name in ("prompt", "completion", "text", *PAIR):
        for answer in _listed(record.get(name)):
            yield _turn(name, answer, name != "prompt")
    if "label" in record:
        yield PreviewSegment(f"label: {record['label']}", False)


def _listed(value: Any) -> Sequence[Any]:
    return () if value is None else value if isinstance(value, list) else [value]


def _turn(name: str, said: Any, learned: bool) -> PreviewSegment:
    if isinstance(said, Mapping):
        calls = [json.dumps(call["function"], ensure_ascii=False) for call in said.get("tool_calls") or ()]
        content = said.get("content")
        text = content if isinstance(content, str) else json.dumps(content) if content else ""
        said = "\n".join([*([text] if text else []), *calls])
    return PreviewSegment(f"{name}: {said}", learned)


def preview_lines(examples: Sequence[PreviewExample], width: int = 80, color: bool = False) -> Iterator[str]:
    if not examples:
        return
    marks = "in green, after |" if color else "after |"
    count = f"{len(examples)} training examples" if len(examples) > 1 else "training example"
    yield f"The first {count}; the loss covers the text {marks}."
    for example in examples:
        yield ""
        yield _cut(example.title, width, at_start=True)
        for segment in example.segments:
            if segment.learned or segment.text.strip():
                yield from _segment(segment, width, color)
    yield ""


def _segment(segment: PreviewSegment, width: int, color: bool) -> Iterator[str]:
    mark = LEARNED if segment.learned else CONTEXT
    style = GREEN if segment.learned else DIM
    for line in _shortened(segment.text.removesuffix("\n").split("\n")):
        shown = mark + _cut(printable(line), width - len(mark))
        yield f"{style}{shown}{RESET}" if color else shown.rstrip() or mark.rstrip()


def _shortened(lines: list[str]) -> list[str]:
    left_out = len(lines) - HEAD - TAIL
    if left_out <= 1:
        return lines
    return [*lines[:HEAD], f"... {left_out} more lines ...", *lines[-TAIL:]]


def printable(text: str) -> str:
    """The text without control characters, which could change the terminal."""
    return "".join(
        character if character.isprintable() else character.encode("unicode_escape").decode()
        for character in text.expandtabs(4)
    )


def _cut(text: str, width: int, at_start: bool = False) -> str:
    """The text in at most `width` columns, without its middle or its start."""
    if len(text) > 4 * width:
        text = text[: 2 * width] + text[-2 * width :]
    elif _columns(text) <= width:
        return text
    room = width - 3
    head = 0 if at_start else room * 2 // 3
    return f"{_fitting(text, head)}...{_fitting(text[::-1], room - head)[::-1]}"


def _fitting(text: str, width: int) -> str:
    """The longest start of the text in at most `width` columns."""
    used = 0
    for index, character in enumerate(text):
        used += _columns(character)
        if used > width:
            return text[:index]
    return text


def _columns(text: str) -> int:
    return sum(
        0 if unicodedata.combining(each) else 2 if unicodedata.east_asian_width(each) in "WF" else 1
        for each in text
    )
