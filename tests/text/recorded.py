"""Answers as models of each family write them, and what is in them: (text, parts).

A part is a content, "r:" and a reasoning, or (name, arguments: a text, if they are no JSON).
"""
# ruff: noqa: E501 (texts are whole, as they come)

from dataclasses import replace
from typing import Any

from rondo.text.parsing import ArgumentsDelta, Call, Part


def joined(parts: list[Part]) -> list[Part]:
    """Neighbouring texts as one, and calls with their arguments."""
    whole: list[Part] = []
    for part in parts:
        if isinstance(part, ArgumentsDelta):
            whole[-1] = replace(whole[-1], arguments=whole[-1].arguments + part.text)
        elif whole and not isinstance(part, Call) and type(whole[-1]) is type(part):
            whole[-1] = type(part)(whole[-1].text + part.text)
        else:
            whole.append(part)
    return whole


TOOLS = [
    {
        "name": "get_weather",
        "parameters": {
            "type": "object",
            "properties": {
                "city": {"type": "string"},
                "days": {"type": "integer"},
                "units": {"type": ["string", "null"]},
                "wind": {"type": "boolean"},
                "at": {"type": "object"},
                "tags": {"type": "array"},
            },
        },
    },
    {"name": "now", "parameters": {"type": "object", "properties": {}}},
    {
        "name": "write_file",
        "parameters": {"properties": {"path": {"type": "string"}, "text": {"type": "string"}}},
    },
    {"name": "brave_search"},
]

Expected = list[str | tuple[str, dict[str, Any] | str]]
Recorded = list[tuple[str, Expected]]

PARIS = {"city": "Paris"}


def rewritten(texts: Recorded, *changes: tuple[str, str]) -> Recorded:
    """As a family writes them that differs by its markers alone."""

    def rewrite(text: str) -> str:
        for old, new in changes:
            text = text.replace(old, new)
        return text

    return [
        (rewrite(text), [rewrite(part) if isinstance(part, str) else part for part in parts])
        for text, parts in texts
    ]


HERMES: Recorded = [
    ("The sky is blue.", ["The sky is blue."]),
    (
        '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris"}}\n</tool_call>',
        [("get_weather", PARIS)],
    ),
    (
        'I look it up.\n\n<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris", "days": 3}}\n</tool_call>',
        ["I look it up.", ("get_weather", PARIS | {"days": 3})],
    ),
    (
        '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris"}}\n</tool_call>\n'
        '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>\n',
        [("get_weather", PARIS), ("now", {})],
    ),
    (
        '<tool_call>{"name": "write_file", "arguments": {"path": "a.md", "text": "use </tool_call>\\n\\"<tool_call>\\""}}'
        "</tool_call>",
        [("write_file", {"path": "a.md", "text": 'use </tool_call>\n"<tool_call>"'})],
    ),
    ('<tool_call>\n{"name": "now"}\n</tool_call>', [("now", {})]),
    (
        '<tool_call>\n{"arguments": "{\\"city\\": \\"Paris\\"}", "name": "get_weather"}\n</tool_call>',
        [("get_weather", PARIS)],
    ),
    (
        '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Zürich – 東京 🌦"}}\n</tool_call>',
        [("get_weather", {"city": "Zürich – 東京 🌦"})],
    ),
    ('<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris"}}', [("get_weather", PARIS)]),
    (
        '<tool_call>\n{"name": "get_weather", "arguments": {"ci',
        [("get_weather", '{"ci')],
    ),
    (
        'So: <tool_call>\n{"name": "get_weather", "arguments": {city: Paris}}\n</tool_call> or not',
        ['So: <tool_call>\n{"name": "get_weather", "arguments": {city: Paris}}\n</tool_call> or not'],
    ),
    (
        '<tool_call>{"name": "now", "arguments": {"a": "b}}</tool_call>\n<tool_call>{"name": "now"}</tool_call>',
        [("now", '{"a": "b}}</tool_call>\\n<tool_call>{"name": "now"}</tool_call>')],
    ),
    (
        '<tool_call>{"name": "now", "arguments": {a: 1}}</tool_call>\n<tool_call>{"name": "now"}</tool_call>',
        ['<tool_call>{"name": "now", "arguments": {a: 1}}</tool_call>', ("now", {})],
    ),
    (
        '<tool_call>\n{"name": "now", "arguments": {"a": "1\n\t2"}}\n</tool_call>',
        [("now", {"a": "1\n\t2"})],
    ),
    (
        '<tool_call>{"name": "now", "arguments": { "a" : 1 }, "id": "5"} </tool_call>!',
        [("now", {"a": 1}), "!"],
    ),
    ('<tool_call>{"name": "now", "arguments": {}}} </tool_call>', [("now", {}), "} </tool_call>"]),
    (
        '<tool_call>{"name": "now"}\n<tool_call>{"name": "get_weather", "arguments": {"city": "Paris"}}</tool_call>',
        [("now", {}), ("get_weather", PARIS)],
    ),
    ("<tool_call>[1, 2]</tool_call>\n\n", ["<tool_call>[1, 2]</tool_call>\n\n"]),
    ("if a <tool and b <tool_cal", ["if a <tool and b <tool_cal"]),
    (
        '<tool_call>{"name": "now", "arguments": {"x": 1 2}}</tool_call>',
        [("now", '{"x": 1 2}')],
    ),
    ('<tool_call>{"name": "now"}</tool_call>\nDone.', [("now", {}), "\nDone."]),
    ('<tool_call>{"name": "now", "arguments": {"x": "\\ud800"}}</tool_call>', [("now", {"x": "\ud800"})]),
]

LLAMA3: Recorded = [
    ("Paris is sunny.", ["Paris is sunny."]),
    ('{"name": "get_weather", "parameters": {"city": "Paris"}}', [("get_weather", PARIS)]),
    ('\n\n{"name": "get_weather", "arguments": {"city": "Paris"}}\n', [("get_weather", PARIS)]),
    (
        '{"type": "function", "name": "get_weather", "parameters": {"city": "Paris", "days": "3"}}',
        [("get_weather", PARIS | {"days": "3"})],
    ),
    ('<|python_tag|>{"name": "get_weather", "parameters": {"city": "Paris"}}', [("get_weather", PARIS)]),
    (
        '<|python_tag|>{"name": "get_weather", "parameters": {"city": "Paris"}}; {"name": "now", "parameters": {}}',
        [("get_weather", PARIS), ("now", {})],
    ),
    (
        '{"name": "now", "parameters": {}};{"name": "write_file", "parameters": {"path": "a", "text": "};{\\"\\\\"}}',
        [("now", {}), ("write_file", {"path": "a", "text": '};{"\\'})],
    ),
    (
        '<|python_tag|>brave_search.call(query="weather in Paris", count=-2)',
        [("brave_search", {"query": "weather in Paris", "count": -2})],
    ),
    ('<|python_tag|>import os\nprint({"a": 1})', ['<|python_tag|>import os\nprint({"a": 1})']),
    ('{"name": "Ada", "parameters": {"born": 1815}}', ['{"name": "Ada", "parameters": {"born": 1815}}']),
    ('{"answer": [1, 2]} is the JSON.', ['{"answer": [1, 2]} is the JSON.']),
    (
        '{"name": "get_weather", "parameters": {"city": "Par',
        [("get_weather", '{"city": "Par')],
    ),
    ('Use {"name": "now", "parameters": {}} for it.', ['Use {"name": "now", "parameters": {}} for it.']),
    ('{"name": "now"}', ['{"name": "now"}']),
    ('I look. <|python_tag|>{"name": "now", "parameters": {}}', ["I look.", ("now", {})]),
    ('{"name": "now", "parameters": {}}\nThat was it; truly.', [("now", {}), "\nThat was it; truly."]),
]

MISTRAL: Recorded = [
    ("Bonjour.", ["Bonjour."]),
    ('[TOOL_CALLS] [{"name": "get_weather", "arguments": {"city": "Paris"}}]', [("get_weather", PARIS)]),
    (
        '[TOOL_CALLS][{"name": "get_weather", "arguments": {"city": "Paris"}, "id": "VvvODy9mT"}]',
        [("get_weather", PARIS)],
    ),
    (
        '[TOOL_CALLS] [{"name": "get_weather", "arguments": {"city": "Paris"}}, {"name": "now", "arguments": {}}]',
        [("get_weather", PARIS), ("now", {})],
    ),
    ('[TOOL_CALLS]get_weather[ARGS]{"city": "Paris"}', [("get_weather", PARIS)]),
    ('[TOOL_CALLS]get_weather[CALL_ID]VvvODy9mT[ARGS]{"city": "Paris"}', [("get_weather", PARIS)]),
    (
        '[TOOL_CALLS]get_weather[ARGS]{"city": "Paris"}[TOOL_CALLS]now[ARGS]{}',
        [("get_weather", PARIS), ("now", {})],
    ),
    (
        'I look it up.[TOOL_CALLS]get_weather{"city": "Paris", "at": {"lat": 1}}',
        ["I look it up.", ("get_weather", PARIS | {"at": {"lat": 1}})],
    ),
    (
        '[TOOL_CALLS]write_file[ARGS]{"path": "a", "text": "}[TOOL_CALLS]now[ARGS]{}"}',
        [("write_file", {"path": "a", "text": "}[TOOL_CALLS]now[ARGS]{}"})],
    ),
    (
        '[TOOL_CALLS] [{"name": "get_weather", "arguments": {"ci',
        [("get_weather", '{"ci')],
    ),
    ('[TOOL_CALLS]get_weather[ARGS]{"city": "Par', [("get_weather", '{"city": "Par')]),
    ("[TOOL_CALLS]", ["[TOOL_CALLS]"]),
    ("[TOOL_CALLS] []", ["[TOOL_CALLS] []"]),
    (
        '[TOOL_CALLS] [{"name": "now", "arguments": {}}, 5]!',
        [("now", {}), " 5]!"],
    ),
    (
        '[TOOL_CALLS] [{"name": "now", "arguments": {"a": [{}]}}, {"arguments": "{}", "name": "now"}, 5]',
        [("now", {"a": [{}]}), ("now", {}), ", 5]"],
    ),
    (
        '[TOOL_CALLS] [{"arguments": {}, "name": "now"}, {"name": "now", "arguments": {"b": "]"}}]',
        [("now", {}), ("now", {"b": "]"})],
    ),
    ("[TOOL_CALLS]get weather\n[TOOL_CALLS]now[ARGS]{}", ["[TOOL_CALLS]get weather", ("now", {})]),
    ("a list [TOOL, x]", ["a list [TOOL, x]"]),
]

_V3 = "<｜tool▁call▁begin｜>function<｜tool▁sep｜>{}\n```json\n{}\n```<｜tool▁call▁end｜>"
_WEATHER3 = _V3.format("get_weather", '{"city": "Paris"}')
_NOW3 = _V3.format("now", "{}")
_WEATHER31 = '<｜tool▁call▁begin｜>get_weather<｜tool▁sep｜>{"city": "Paris"}<｜tool▁call▁end｜>'
_NOW31 = "<｜tool▁call▁begin｜>now<｜tool▁sep｜>{}<｜tool▁call▁end｜>"
_BEGIN, _END = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"

DEEPSEEK: Recorded = [
    ("It is noon.", ["It is noon."]),
    (f"{_BEGIN}{_WEATHER3}{_END}", [("get_weather", PARIS)]),
    (f"{_BEGIN}{_WEATHER3}\n{_NOW3}{_END}", [("get_weather", PARIS), ("now", {})]),
    (f"I look it up.\n\n{_BEGIN}{_WEATHER3}{_END}", ["I look it up.", ("get_weather", PARIS)]),
    (f"{_BEGIN}{_WEATHER31}{_END}", [("get_weather", PARIS)]),
    (f"{_BEGIN}{_WEATHER31}{_NOW31}{_END}\n", [("get_weather", PARIS), ("now", {})]),
    (f"Now: {_BEGIN}{_NOW31}", ["Now:", ("now", {})]),
    (f"{_BEGIN}{_WEATHER31[:40]}", [f"{_BEGIN}{_WEATHER31[:40]}"]),
    (f"{_BEGIN}{_V3.format('now', '{oops')}{_END}", [f"{_BEGIN}{_V3.format('now', '{oops')}{_END}"]),
    (f"{_BEGIN}{_WEATHER3[:-20]}", [("get_weather", PARIS)]),
    (f"{_BEGIN}{_WEATHER3[:-25]}", [("get_weather", '{"city": "Par')]),
    (_WEATHER31.removesuffix("<｜tool▁call▁end｜>"), [("get_weather", PARIS)]),
    ("a <｜tool▁call▁begin｜>now<｜tool▁call▁end｜> b", ["a <｜tool▁call▁begin｜>now<｜tool▁call▁end｜> b"]),
    (
        _BEGIN + _V3.format("write_file", '{"text": "```json\\n1\\n```"}') + _END,
        [("write_file", {"text": "```json\n1\n```"})],
    ),
    (f"Well{_END}", [f"Well{_END}"]),
]

_A = "<|channel|>analysis<|message|>The user asks for the weather.<|end|>"
_CALL = "<|start|>assistant<|channel|>commentary to=functions.get_weather <|constrain|>json<|message|>"

HARMONY: Recorded = [
    ("<|channel|>final<|message|>It is noon.", ["It is noon."]),
    ("<|channel|>final<|message|>It is noon.<|return|>", ["It is noon."]),
    (
        f"{_A}<|start|>assistant<|channel|>final<|message|>Sunny.",
        ["r:The user asks for the weather.", "Sunny."],
    ),
    (f'{_A}{_CALL}{{"city": "Paris"}}', ["r:The user asks for the weather.", ("get_weather", PARIS)]),
    (f'{_A}{_CALL}{{"city": "Paris"}}<|call|>', ["r:The user asks for the weather.", ("get_weather", PARIS)]),
    (
        f'{_A}<|start|>assistant to=functions.get_weather<|channel|>commentary json<|message|>{{"city":"Paris"}}<|call|>',
        ["r:The user asks for the weather.", ("get_weather", PARIS)],
    ),
    (
        f'{_A}<|start|>assistant<|channel|>commentary<|message|>I will look.<|end|>{_CALL}{{"city": "Paris"}}',
        ["r:The user asks for the weather.", "I will look.", ("get_weather", PARIS)],
    ),
    (
        f'{_CALL.removeprefix("<|start|>assistant")}{{"city": "Paris"}}<|call|>'
        "<|start|>assistant<|channel|>commentary to=functions.now<|message|>{}<|call|>",
        [("get_weather", PARIS), ("now", {})],
    ),
    (" to=functions.now<|channel|>commentary<|message|>{}", [("now", {})]),
    (
        f"{_A}<|start|>assistant<|channel|>analysis<|message|>More.",
        ["r:The user asks for the weather.\nMore."],
    ),
    ("<|channel|>analysis<|message|>Cut off in the mid", ["r:Cut off in the mid"]),
    (f'{_A}{_CALL}{{"city": "Par', ["r:The user asks for the weather.", ("get_weather", '{"city": "Par')]),
    (f"{_CALL}{{oops}}<|call|>", [_CALL + "{oops}"]),
    (f'{_CALL} {{"a": "}}\n"}} \n<|call|>', [("get_weather", {"a": "}\n"})]),
    (f"{_CALL}{{}} and more<|call|>", [("get_weather", {}), "and more"]),
    (f"{_A}<|start|>assist", ["r:The user asks for the weather.", "<|start|>assist"]),
    ("Plain text.", ["Plain text."]),
    ("<|channel|>final<|message|>1 < 2 and <|x", ["1 < 2 and <|x"]),
    ("<|channel|>analysis<|message|>No end<|channel|>final<|message|>Yes", ["r:No end", "Yes"]),
    ("<|channel|>commentary to=browser.open<|message|>{}", ["{}"]),
]

THINK: Recorded = [
    ("Just this.", ["Just this."]),
    ("<think>\nHm.\n</think>\n\nYes.", ["r:Hm.", "Yes."]),
    ("<think>Hm.</think>Yes.", ["r:Hm.", "Yes."]),
    ("<think>\n\n</think>\n\nYes.", ["Yes."]),
    ("\n<think>\nOne.\n\nTwo. </thin king\n</think>\nYes.\n", ["r:One.\n\nTwo. </thin king", "Yes.\n"]),
    ("<think>\nCut off", ["r:Cut off"]),
    ("<think>\nCut off </thi", ["r:Cut off </thi"]),
    ("<thin air>", ["<thin air>"]),
    ("<thi", ["<thi"]),
    ("<think>a</think>\n\nb <think>c</think>", ["r:a", "b <think>c</think>"]),
    (
        '<think>use <tool_call>{"name": "now"}</tool_call>?</think><tool_call>{"name": "now"}</tool_call>',
        ['r:use <tool_call>{"name": "now"}</tool_call>?', ("now", {})],
    ),
    ("  ", ["  "]),
]

OPENED: Recorded = [
    ("Hm.\n</think>\n\nYes.", ["r:Hm.", "Yes."]),
    ("\nHm.\n\nSo.</think>Yes.", ["r:Hm.\n\nSo.", "Yes."]),
    ("<think>\nHm.\n</think>\n\nYes.", ["r:Hm.", "Yes."]),
    ("</think>Yes.", ["Yes."]),
    ("\n</think>\n\n", []),
    ("Still at it", ["r:Still at it"]),
    ("Still at it </think", ["r:Still at it </think"]),
    ("a < b </think> c < d", ["r:a < b", "c < d"]),
    ("<thi", ["r:<thi"]),
    (
        'I call.</think>\n\n<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>',
        ["r:I call.", ("now", {})],
    ),
    ("One </think> two </think> three", ["r:One", "two </think> three"]),
]

MISTRAL_THINK: Recorded = [
    ("Oui.", ["Oui."]),
    ("[THINK]Hm.[/THINK]Oui.", ["r:Hm.", "Oui."]),
    ("[THINK]\nHm.\n\n[/THINK]\nOui.", ["r:Hm.", "Oui."]),
    ("[THINK]Hm.[/THINK][TOOL_CALLS]now[ARGS]{}", ["r:Hm.", ("now", {})]),
    ("[THINK]Hm.[/THINK]Je regarde.[TOOL_CALLS]now[ARGS]{}", ["r:Hm.", "Je regarde.", ("now", {})]),
    ("[THINK]Hm. [/THIN", ["r:Hm. [/THIN"]),
    ("[THINK]", []),
    ("[THINK][/THINK]Oui.", ["Oui."]),
    ("[TH", ["[TH"]),
    ("[THINK]a [x] b[/THINK][y]", ["r:a [x] b", "[y]"]),
    ("Non. [THINK]a[/THINK]", ["Non. [THINK]a[/THINK]"]),
]


_KIMI = "<|tool_call_begin|>functions.get_weather:0<|tool_call_argument_begin|>{}<|tool_call_end|>"
_KIMI_NOW = "<|tool_call_begin|>functions.now:1<|tool_call_argument_begin|>{}<|tool_call_end|>"
_KIMI_BEGIN, _KIMI_END = "<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"
_KIMI_PARIS = _KIMI.format('{"city": "Paris"}')

KIMI: Recorded = [
    ("It is noon.", ["It is noon."]),
    (_KIMI_BEGIN + _KIMI_PARIS + _KIMI_END, [("get_weather", PARIS)]),
    (
        f"I look.{_KIMI_BEGIN}{_KIMI_PARIS}\n{_KIMI_NOW}{_KIMI_END}",
        ["I look.", ("get_weather", PARIS), ("now", {})],
    ),
    (_KIMI_PARIS, [("get_weather", PARIS)]),
    (
        _KIMI_BEGIN + _KIMI.format('{"at": {"x": [{"y": "}<|"}]}}'),
        [("get_weather", {"at": {"x": [{"y": "}<|"}]}})],
    ),
    (_KIMI.format('{"city": "Zürich – 東京 🌦"}'), [("get_weather", {"city": "Zürich – 東京 🌦"})]),
    (_KIMI.format('"{}"'), [_KIMI.format('"{}"')]),
    (_KIMI_BEGIN + _KIMI_PARIS[:-21], [("get_weather", '{"city": "Par')]),
    (_KIMI.format("oops"), [_KIMI.format("oops")]),
    (_KIMI_PARIS[:50], [_KIMI_PARIS[:50]]),
    (_KIMI_NOW.replace("functions.", ""), [("now", {})]),
    (_KIMI_NOW + _KIMI_END + "Done.", [("now", {}), _KIMI_END + "Done."]),
]

PYTHONIC: Recorded = [
    ("It is noon.", ["It is noon."]),
    ('[get_weather(city="Paris")]', [("get_weather", PARIS)]),
    ("[get_weather(city='Paris', days=3), now()]", [("get_weather", PARIS | {"days": 3}), ("now", {})]),
    ('<|python_start|>[get_weather(city="Paris")]<|python_end|>', [("get_weather", PARIS)]),
    (
        '[get_weather(city="a ] b", at={"x": [1, {"y": None}]}, wind=true, tags=["[", \'"\'])]',
        [("get_weather", {"city": "a ] b", "at": {"x": [1, {"y": None}]}, "wind": True, "tags": ["[", '"']})],
    ),
    ('[get_weather(city="Zürich – 東京 🌦")]', [("get_weather", {"city": "Zürich – 東京 🌦"})]),
    ("[1, 2, 3]", ["[1, 2, 3]"]),
    ('[search(query="x")]', ['[search(query="x")]']),
    ('<|python_start|>[other.search(query="x")]', [("other.search", {"query": "x"})]),
    ('[get_weather("Paris")] it is', ['[get_weather("Paris")] it is']),
    ('[get_weather(city="Par', ['[get_weather(city="Par']),
    ("[now()]\nDone.", [("now", {}), "\nDone."]),
    ("See [now()].", ["See [now()]."]),
    ("[now(x=__import__('os'))]", ["[now(x=__import__('os'))]"]),
    ("[write_file(path=\"a\\\"]\", text='it\\'s')]", [("write_file", {"path": 'a"]', "text": "it's"})]),
]
OLMO3: Recorded = [
    (f"<function_calls>\n{text[1:-1]}\n</function_calls>", parts)
    for text, parts in PYTHONIC
    if text.startswith("[") and text.endswith(")]") and len(parts) == 1 and isinstance(parts[0], tuple)
] + [
    ("It is noon.", ["It is noon."]),
    ("<function_calls>\nnow()\nnow()\n</function_calls>", [("now", {}), ("now", {})]),
    ("So:\n<function_calls>now()</function_calls>", ["So:", ("now", {})]),
    ("<function_calls>\nnow(\n</function_calls>", ["<function_calls>\nnow(\n</function_calls>"]),
    ("<function_calls>\nnow()\n</function", ["<function_calls>\nnow()\n</function"]),
    ("<function_calls>\n</function_calls>", ["<function_calls>\n</function_calls>"]),
    ("<function_calls>now()</function_calls>!", [("now", {}), "!"]),
]

_LISTED: Recorded = [
    (text, parts) for text, parts in MISTRAL if "[ARGS]" not in text and "weather{" not in text
]
GRANITE = [
    *rewritten(_LISTED, ("[TOOL_CALLS]", "<|tool_call|>")),
    ('<tool_call>[{"name": "now", "arguments": {}}]', [("now", {})]),
    ('Hm <|tool_call|>[{"arguments": {}, "name": "now"}]', ["Hm", ("now", {})]),
]
PHI4 = [
    *rewritten(_LISTED, ("[TOOL_CALLS]", "functools")),
    ('functools[{"name": "now", "arguments": {"a": "functools[]"}}]', [("now", {"a": "functools[]"})]),
    ("import functools", ["import functools"]),
]
JAMBA = [
    *rewritten(_LISTED, ("[TOOL_CALLS]", "<tool_calls>")),
    ('<tool_calls>[\n  {"name": "now", "arguments": {}}\n]</tool_calls>', [("now", {})]),
    (
        '<tool_calls>[{"name": "now", "arguments": {}}, {"name": "now", "arguments": {}}]\n</tool_calls>!',
        [("now", {}), ("now", {}), "!"],
    ),
]
LLAMA4 = [
    *rewritten(LLAMA3, ("python_tag", "python_start")),
    ('<|python_start|>{"name": "now", "parameters": {}}<|python_end|>', [("now", {})]),
]
