"""Code blocks in answers: CommonMark's rules, as markdown-it reads them, in linear time."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from rondo.graders import AnswerMatcher
from rondo.graders.execution.code import extract
from rondo.graders.judges.judge import _field
from rondo.graders.rules.choice import chosen
from rondo.graders.rules.fences import blocks
from rondo.graders.rules.format import has_tags, tag_content
from rondo.graders.rules.match import boxed, last_line, normalise
from rondo.graders.rules.numbers import last_number, parse_number

SIZE = 2_000_000
CPU_SECONDS = 40.0
"""Far above what linear time takes, and far below what quadratic time takes for `SIZE` characters."""


@pytest.mark.parametrize(
    ("completion", "program"),
    [
        ("```python\nx = 1\n```\nIt prints:\n```\n1\n```", "x = 1\n"),
        ("```python\nx = 1\n```\nIt prints:\n```text\n1\n```", "x = 1\n"),
        ("```\nx = 1\n```\nIt prints:\n```text\n1\n```", "x = 1\n"),
        ("```\nx = 1\n```\nor\n```\nx = 2\n```", "x = 2\n"),
        ("```js\nx = 1\n```\nor\n```code\nx = 2\n```", "x = 2\n"),
        ("```python\nx = 1\n```\n```python\n```", "x = 1\n"),
        ("```Python3 title=a\nx = 1\n```\n```\n1\n```", "x = 1\n"),
        ("```{.python .numbers}\nx = 1\n```\n```\n1\n```", "x = 1\n"),
        ("```py3\nx = 1\n```\n```\n1\n```", "x = 1\n"),
        ("```python3.11\nx = 1\n```\n```\n1\n```", "x = 1\n"),
        ("```solution.py\nx = 1\n```\n```\n1\n```", "x = 1\n"),
        ("``` python\nx = 1\n```\n```pyproject\n1\n```", "x = 1\n"),
        ("~~~python\nx = '```'\n~~~", "x = '```'\n"),
        ("~~~python\nx = 1\n```\ny = 2\n~~~~ \n", "x = 1\n```\ny = 2\n"),
        ("````python\n'''\n```python\nx = 1\n```\n'''\n````", "'''\n```python\nx = 1\n```\n'''\n"),
        ("```python\nx = '''\n```python\n'''\n```", "x = '''\n```python\n'''\n"),
        ("```python\nx = 1\n    ```\n```", "x = 1\n    ```\n"),
        ("   ```python\n   if x:\n       y\n   ```", "if x:\n    y\n"),
        ("1. So:\n\n    ```python\n    if x:\n        y\n    ```\n2. Done.", "if x:\n    y\n"),
        ("- - ```python\n    x = 1\n    ```", "x = 1\n"),
        ("- So:\n  ```python\nx = 1\n  ```\n", "x = 1\n"),
        ("1. So:\n\t```python\n\tif x:\n\t\ty\n\t```", "if x:\n\ty\n"),
        ("```python\r\nx = 1\r\n```\r\n", "x = 1\n"),
        ("x = 'a ``` b'", "x = 'a ``` b'"),
        ("```not a fence```\nx", "```not a fence```\nx"),
        ("```python\nx = 1\n```\nbut\n```python\nx = 2", "x = 1\n"),
        ("~~~python\nx = 1", None),
        ("```python\n \n```", None),
    ],
)
def test_the_program_of_an_answer(completion: str, program: str | None) -> None:
    assert extract(completion) == program


LINES = st.sampled_from(
    [
        *("```", "````", "~~~", "~~~~", "``", "~~", "``` ", "~~~ \t", "```x`", "~~~`x", "~~~x~"),
        *("```python", "``` py x", "~~~ python", " ```", "   ~~~", "    ```", "\t```", "  ````x"),
        *("", " ", "text", "    x = 1", "  y", "\tz", "x ```"),
    ]
)


@given(st.lists(LINES, max_size=14), st.sampled_from(["\n", "\r\n"]))
def test_blocks_are_those_of_commonmark(lines: list[str], end: str) -> None:
    text = end.join(lines)
    fences = [token for token in MarkdownIt().parse(text) if token.type == "fence"]
    found = [(block.info, block.code(text).rstrip()) for block in blocks(text)]
    assert found == [(token.info.strip(), token.content.rstrip()) for token in fences]


@given(st.text(alphabet="`~ \n\t-1.py", max_size=80))
def test_blocks_do_not_overlap(text: str) -> None:
    found = list(blocks(text))
    assert all(block.closed for block in found[:-1])
    edges = [edge for block in found for edge in (block.start, block.end)]
    assert edges == sorted(edges)
    assert all(edge <= len(text) for edge in edges)


def repeated(piece: str, before: str = "", after: str = "") -> str:
    return before + piece * (SIZE // len(piece)) + after


LONG = {
    "an unclosed fence": repeated("x = 1\n", "```python\n"),
    "an unclosed fence and many words": repeated("word ", "```python\n"),
    "a fence and one long word": repeated("x", "```"),
    "a fence and spaces": repeated(" ", "```"),
    "fences that open": repeated("```python\n"),
    "fences that open and close": repeated("```\nx\n```\n"),
    "fences of both kinds": repeated("```\n~~~\n"),
    "longer and longer fences": "\n".join("`" * length for length in range(3, 2000)),
    "shorter and shorter fences": "\n".join("`" * length for length in range(2000, 2, -1)),
    "backticks": repeated("`"),
    "backticks and a word": repeated("`", after="x`"),
    "backticks between words": repeated("```x`y"),
    "tildes": repeated("~", "```\n", "\n```"),
    "spaces": repeated(" ", "```\n", "```"),
    "lines": repeated("\n"),
    "lines of spaces": repeated("      \n", "```\n"),
    "list items on one line": repeated("- "),
    "list items within each other": "\n".join(" " * (2 * depth) + "- x" for depth in range(1400)),
    "nested fences": repeated("````\n```\n", after="````"),
    "quoted fences": repeated("> ```python\n"),
    "line ends of Windows": repeated("\r\n", "```"),
    "boxes": repeated("\\boxed{"),
    "boxes without braces": repeated("\\boxed   "),
    "boxes that close": repeated("\\boxed{1}"),
    "braces": repeated("{") + repeated("}"),
    "fractions": repeated("\\frac{1"),
    "fractions with one part": repeated("\\frac{1}   "),
    "digits": repeated("1", after="x"),
    "digits and commas": repeated("1,111,111,"),
    "digits and points": repeated("1."),
    "digits and slashes": repeated("1/"),
    "a number and spaces": repeated(" ", "1", "x"),
    "signs": repeated("-"),
    "powers": repeated("1e"),
    "tags": repeated("<answer>"),
    "tags that close": repeated("</answer>"),
    "halves of tags": repeated("<answer"),
    "answers": repeated("answer is "),
    "answers and spaces": repeated("answer is    :   ("),
    "combining characters": repeated("\u0301\u0316", "a"),
    "letters and combining characters": repeated("a\u0316\u0301\u0316"),
    "Hangul": repeated("\u1100\u1161\u11a8"),
}
READERS: dict[str, Any] = {
    "extract": extract,
    "boxed": boxed,
    "last_line": last_line,
    "normalise": normalise,
    "last_number": last_number,
    "parse_number": parse_number,
    "answer_tag": lambda text: tag_content(text, "answer"),
    "has_tags": lambda text: has_tags(text, ("think", "answer")),
    "chosen": chosen,
    "judge": lambda text: _field(f"```json{text}\n```", "result", None),
    "equal": lambda text: AnswerMatcher().equal(text, "Lima"),
}


@contextmanager
def cpu_limit(seconds: float) -> Iterator[None]:
    """An error at once where code takes more CPU time, however busy the machine is."""

    def end(*_: object) -> None:
        raise AssertionError(f"more than {seconds} s of CPU time")

    before = signal.signal(signal.SIGPROF, end)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


@pytest.mark.parametrize("text", [name for name in LONG if "fence" in name or "tick" in name])
def test_programs_are_found_in_linear_time(text: str) -> None:
    with cpu_limit(CPU_SECONDS):
        extract(LONG[text])


@pytest.mark.parametrize("reader", READERS)
def test_answers_are_read_in_linear_time(reader: str) -> None:
    with cpu_limit(CPU_SECONDS):
        for text in LONG.values():
            READERS[reader](text[: SIZE // 8])
