"""What a model writes can be made to be the worst there is: its last tokens cost what its first ones do."""

import re
import time

import pytest

from rondo.text.parsing import Call, Content, ToolCallFormat
from rondo.text.parsing.dialect import CALLS, REASONING
from rondo.text.parsing.marked import CallFormat
from rondo.text.parsing.scan import LONGEST_HEAD
from text.recorded import TOOLS, joined
from text.test_parsing import KINDS, STREAMED

NAMED = {
    "hermes": '<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>',
    "llama3_json": '<|python_tag|>{"type": "function", "name": "f", "parameters": {"a": 1}}',
    "mistral": '[TOOL_CALLS]f[CALL_ID]a1[ARGS]{"a": 1}',
    "deepseek_v3": STREAMED["deepseek_v3"] % '{"a": 1}',
    "deepseek_v31": '<｜tool▁call▁begin｜>f<｜tool▁sep｜>{"a": 1}<｜tool▁call▁end｜>',
    "kimi_k2": STREAMED["kimi_k2"] % '{"a": 1}',
    "granite": '<|tool_call|> [{"name": "f", "arguments": {"a": 1}}]',
    "jamba": '<tool_calls>[{"name": "f", "arguments": {"a": 1}}]</tool_calls>',
    "phi4_mini_json": 'functools[{"name": "f", "arguments": {"a": 1}}]',
    "openai": STREAMED["openai"] % '{"a": 1}',
}
BEGUN = {kind: max((text for text, _ in texts[:6]), key=len)[:120] for kind, (_, _, texts) in KINDS.items()}
BEGUN |= NAMED
MORE = ("  ", "\n ", "ab")


def parser_of(kind: str):
    dialect, prompt, _ = KINDS.get(kind, (ToolCallFormat(kind), "", ()))
    return dialect.parser(prompt, TOOLS)


def heads(text: str) -> list[str]:
    """An answer's beginnings, up to each of its marks."""
    return ["", *(text[: mark.end()] for mark in re.finditer(r"\w+|\W+", text))]


def costs(kind: str, head: str, more: str, tokens: int) -> tuple[float, float, float]:
    """The CPU's seconds of the first and of the last quarter of them, and of the answer's end."""
    parser = parser_of(kind)
    parser.feed(head)
    quarters = []
    for _ in range(4):
        began = time.process_time()
        for _ in range(tokens // 4):
            parser.feed(more)
        quarters.append(time.process_time() - began)
    began = time.process_time()
    parser.finish()
    return quarters[0], quarters[-1], time.process_time() - began


def is_steady(kind: str, head: str, more: str, tokens: int = 600) -> bool:
    """What is quadratic costs seven times as much in the last quarter."""
    first, last, end = costs(kind, head, more, tokens)
    least = tokens / 4 * 2e-6
    return last < 4 * max(first, least) and end < 8 * max(first, least)


def test_every_format_is_asked():
    assert set(CALLS.values()) == {CALLS[kind] for kind in BEGUN if kind in CALLS}
    asked = {dialect.reasoning for dialect, _, _ in KINDS.values()}
    assert {"qwen3", "mistral"} <= asked <= {*REASONING, "openai_gptoss", None}


@pytest.mark.parametrize("kind", BEGUN)
def test_a_token_costs_the_same_however_much_came_before_it(kind):
    for at, head in enumerate(heads(BEGUN[kind])):
        more = MORE[at % len(MORE)]
        # A large figure three times is no accident.
        assert any(is_steady(kind, head, more) for _ in range(3)), (head, more)


def longest_kept(thing: object) -> int:
    """The longest of all texts that a parser would add to, copy or search when there is more."""
    match thing:
        case str():
            return len(thing)
        case list() | tuple():
            return max(map(longest_kept, thing), default=0)
        case _ if type(thing).__module__.startswith("rondo.text.parsing") and not isinstance(
            thing, CallFormat
        ):
            return max(map(longest_kept, vars(thing).values()), default=0)
    return 0


@pytest.mark.parametrize("kind", BEGUN)
def test_what_is_open_is_kept_in_pieces(kind):
    """However long it is, so that a token's cost is that of its own letters."""
    size, times = 1024, 16
    for head in heads(BEGUN[kind]):
        for more in (*MORE, "\\n", '"[', "]</"):
            parser = parser_of(kind)
            parser.feed(head)
            longest = 0
            for _ in range(times):
                parser.feed(more * (size // len(more)))
                longest = max(longest, longest_kept(parser))
            assert longest <= size + 2 * LONGEST_HEAD, (head, more)


@pytest.mark.parametrize("unit", ['<｜DSML｜invoke name="f">', "</｜DSML｜", "a</arg_value> "])
@pytest.mark.parametrize("kind", ["deepseek_v32", "glm45", "hermes"])
def test_what_is_never_closed_is_kept_in_pieces(kind, unit):
    parser = parser_of(kind)
    parser.feed(NAMED.get(kind, BEGUN[kind])[:25])
    for _ in range(4000):
        parser.feed(unit)
    assert longest_kept(parser) <= 2 * LONGEST_HEAD


@pytest.mark.parametrize(
    ("kind", "head", "more"),
    [
        ("mistral", "[TOOL_CALLS]f", "  "),
        ("mistral", "[TOOL_CALLS]", "name"),
        ("mistral", "[TOOL_CALLS]f[CALL_ID]a", "  "),
        ("deepseek_v3", "<｜tool▁call▁begin｜>function<｜tool▁sep｜>", "  "),
        ("deepseek_v3", "<｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n```json", "\n"),
        ("deepseek_v3", "<｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n```json\n", "\n"),
        ("deepseek_v3", "<｜tool▁call▁begin｜>f", " \n"),
        ("hermes", '<tool_call>{"name": "', "aaaa"),
        ("llama3_json", "{", "  "),
        ("jamba", "Hm.", "</tool_calls>"),
        ("glm45", "<tool_call>f<arg_key>", "</tool_call>"),
        ("glm45", "<tool_call>", "name"),
        ("glm45", "<tool_call>f<arg_key>k</arg_key><arg_value>v</arg_value>", "  "),
        ("openai", "<|channel|>", "  "),
        ("openai", "<|channel|>commentary to=functions.now<|message|>", "  "),
        ("qwen3", "<think>Hm.", " \n"),
        ("qwen3", "", " \n"),
    ],
)
def test_eight_thousand_tokens(kind, head, more):
    """Of them some took minutes, on the loop of the server."""
    assert any(is_steady(kind, head, more, 8000) for _ in range(3))


@pytest.mark.parametrize(
    "unit", ["</tool_calls>", '<tool_calls>[{"name": "now", "arguments": {}}]', "<tool_calls>"]
)
def test_a_whole_answer_costs_no_more_than_a_stream(unit):
    def cost(count: int) -> float:
        parser = parser_of("jamba")
        began = time.process_time()
        parser.feed("Hm." + unit * count)
        parser.finish()
        return time.process_time() - began

    assert any(cost(8000) < 24 * max(cost(1000), 1e-3) for _ in range(3))


@pytest.mark.parametrize("kind", ["hermes", "deepseek_v3", "kimi_k2"])
def test_a_call_whose_head_is_long_comes_whole(kind):
    begin, rest = re.match(r"(<[^>]+>(?:function<[^>]+>)?)(.*)", NAMED[kind], re.S).groups()
    text = f"{begin}{' ' * LONGEST_HEAD}{rest}"
    parser = parser_of(kind)
    letters = [part for letter in text for part in parser.feed(letter)] + parser.finish()
    assert [type(part) for part in letters] == [Call]
    parser = parser_of(kind)
    assert joined(parser.feed(text) + parser.finish()) == letters


def test_what_never_becomes_a_call_is_text():
    text = "[TOOL_CALLS]f" + "  " * 8000
    parser = parser_of("mistral")
    assert joined(
        [part for at in range(0, len(text), 2) for part in parser.feed(text[at : at + 2])] + parser.finish()
    ) == [Content(text)]
