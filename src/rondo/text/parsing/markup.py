"""Formats that write each argument between tags. Values are text; the function's schema or the tag defines their
types."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, ClassVar

from rondo.text.parsing.calls import named_call, read_json
from rondo.text.parsing.forced import CallSyntax, Grammar, options_of
from rondo.text.parsing.formats import MarkedEnd
from rondo.text.parsing.marked import CallBlock, CallFormat
from rondo.text.parsing.parts import Call


class Markup(CallFormat):
    """A call written as a function's name and arguments in tags."""

    function: ClassVar[re.Pattern[str]]
    """Pattern of a whole block: its groups are the name and the text of the arguments."""
    argument: ClassVar[re.Pattern[str]]
    """Pattern with groups `key`, `value`, and `string` if the tag declares whether the value is a string."""
    block_end: ClassVar[str] = ""
    tags: ClassVar[tuple[str, str]]
    """Tags around a value in the model's syntax; `{key}` and `{string}` are filled in."""
    written: ClassVar[CallSyntax]

    def block(self) -> CallBlock:
        return MarkedEnd(self.block_end)

    def calls(self, text: str) -> list[Call] | None:
        function = self.function.fullmatch(text)
        if function is None:
            return None
        name, body = function.groups()
        schema = self.tools.get(name, {}).get("properties") or {}
        arguments, at = {}, 0
        while (found := self.argument.match(body, at)) is not None:
            key, value = found["key"], found["value"].removeprefix("\n").removesuffix("\n")
            string = found.groupdict().get("string")
            arguments[key] = _typed(value, schema.get(key)) if string is None else _said(value, string)
            at = found.end()
        call = named_call(name, arguments)
        return None if call is None or body[at:].strip() else [call]

    def shape(self, template: str) -> CallSyntax:
        return self.written

    def arguments(self, grammar: Grammar, rule: str, function: Mapping[str, Any]) -> str:
        schema = function.get("parameters") or {}
        parameters = []
        for index, (key, value) in enumerate((schema.get("properties") or {}).items()):
            name = f"{rule}_{index}"
            text = _is_text(value)
            opening, end = self.tags[0].format(key=key, string="true" if text else "false"), self.tags[1]
            if text:
                said = grammar.until(f"{name}_value", end)
            else:
                said = grammar.json(f"{name}_value", value, options_of(function)) + f" {grammar.literal(end)}"
            grammar.rule(name, f"{grammar.literal(opening)} {said}")
            parameters.append(name if key in schema.get("required", ()) else f"{name}?")
        return grammar.rule(rule, " ".join(parameters) or '""')


def _said(text: str, string: str) -> Any:
    """A value whose tag declares whether it is a string."""
    value = None if string == "true" else read_json(text)
    return text if value is None and (string == "true" or text.strip() != "null") else value


def _typed(text: str, schema: Any) -> Any:
    """A parameter's value: parsed as JSON, unless the schema requires a string."""
    kinds = _kinds(schema)
    if _is_text(schema):
        return None if text == "null" and "null" in kinds else text
    value = read_json(text.lower() if kinds == "boolean" else text)
    return text if value is None and text.strip() != "null" else value


def _kinds(schema: Any) -> Any:
    return schema.get("type", "string") if isinstance(schema, dict) else "string"


def _is_text(schema: Any) -> bool:
    return "string" in _kinds(schema)


def _function(start: str, opening: str, closing: str, end: str) -> re.Pattern[str]:
    """Pattern of a call. `start` and `end` enclose one or several calls, so they are optional."""
    return re.compile(rf"\s*+(?:{start}\s*+)?{opening}(.*){closing}\s*+(?:{end}\s*+)?", re.S)


def _argument(opening: str, closing: str) -> re.Pattern[str]:
    """Pattern of an argument. A value may contain its closing tag: it ends before the next argument or at the end."""
    plain = re.sub(r"\?P<\w+>", "?:", opening)
    return re.compile(rf"\s*+{opening}(?P<value>.*?){closing}\s*+(?={plain}|\Z)", re.S)


class QwenCoder(Markup):
    """`<tool_call><function=name><parameter=key>value</parameter></function></tool_call>`"""

    starts = ("<tool_call>", "<function=")
    noise = ("</tool_call>",)
    function = _function("<tool_call>", r"<function=([^>\s]+)>", "</function>", "</tool_call>")
    argument = _argument(r"<parameter=(?P<key>[^>\s]+)>", "</parameter>")
    block_end = "</function>"
    tags = ("<parameter={key}>\n", "\n</parameter>\n")
    written = CallSyntax("<tool_call>\n<function={name}>\n", "</function>\n</tool_call>", "\n")


class SeedOss(QwenCoder):
    starts = ("<seed:tool_call>", "<function=")
    noise = ("</seed:tool_call>",)
    function = _function("<seed:tool_call>", r"<function=([^>\s]+)>", "</function>", "</seed:tool_call>")
    written = CallSyntax("<seed:tool_call>\n<function={name}>\n", "</function>\n</seed:tool_call>", "\n")


class MiniMax(Markup):
    """`<minimax:tool_call><invoke name="..."><parameter name="key">value</parameter></invoke></minimax:tool_call>`"""

    starts = ("<minimax:tool_call>", "<invoke name=")
    noise = ("</minimax:tool_call>",)
    function = _function(
        "<minimax:tool_call>", r'<invoke name="?([^">\s]+)"?>', "</invoke>", "</minimax:tool_call>"
    )
    argument = _argument(r'<parameter name="?(?P<key>[^">\s]+)"?>', "</parameter>")
    block_end = "</invoke>"
    tags = ('<parameter name="{key}">', "</parameter>\n")
    written = CallSyntax(
        '<invoke name="{name}">\n', "</invoke>\n", "", "<minimax:tool_call>\n", "</minimax:tool_call>"
    )


class Dsml(Markup):
    """DeepSeek V3.2's format: like MiniMax's, with bars around `DSML`, and tags that declare string values."""

    starts = ("<｜DSML｜function_calls>", "<｜DSML｜tool_calls>", "<｜DSML｜invoke name=")
    noise = ("</｜DSML｜function_calls>", "</｜DSML｜tool_calls>")
    function = _function(
        "<｜DSML｜(?:function|tool)_calls>",
        r'<｜DSML｜invoke name="([^"]+)">',
        "</｜DSML｜invoke>",
        "</｜DSML｜(?:function|tool)_calls>",
    )
    argument = _argument(
        r'<｜DSML｜parameter name="(?P<key>[^"]+)" string="(?P<string>true|false)">', "</｜DSML｜parameter>"
    )
    block_end = "</｜DSML｜invoke>"
    tags = ('<｜DSML｜parameter name="{key}" string="{string}">', "</｜DSML｜parameter>\n")
    written = CallSyntax(
        '<｜DSML｜invoke name="{name}">\n',
        "</｜DSML｜invoke>\n",
        "",
        "<｜DSML｜function_calls>\n",
        "</｜DSML｜function_calls>",
    )


class GlmEnd:
    """Incremental scan for the end of a call, outside values."""

    _CLOSING, _KEY, _VALUE_END = "</tool_call>", "<arg_key>", "</arg_value>"

    def __init__(self) -> None:
        self._argued = False
        self._passed = 0
        # A possible start of the closing tag, and the end of the text before it.
        self._kept = self._before = ""

    def feed(self, text: str) -> int | None:
        text, past = self._kept + text, 0
        while (at := text.find(self._CLOSING, past)) >= 0:
            self._pass(text[past:at])
            past = at + len(self._CLOSING)
            if not self._argued or self._before.rstrip() == self._VALUE_END:
                return self._passed + past
            self._before = ""
        keep = max(past, len(text) - len(self._CLOSING) + 1)
        self._pass(text[past:keep])
        self._passed += keep
        self._kept = text[keep:]
        return None

    def _pass(self, text: str) -> None:
        before = self._before + text
        self._argued = self._argued or self._KEY in before
        solid = before.rstrip()
        self._before = solid[-len(self._VALUE_END) :] + " " * (len(solid) < len(before))


class Glm(Markup):
    """`<tool_call>name<arg_key>key</arg_key><arg_value>value</arg_value></tool_call>`"""

    starts = ("<tool_call>",)
    inner = ("</tool_call>", "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>")
    function = _function("<tool_call>", r"([^<\s]++)\s*+", "</tool_call>", "")
    argument = _argument(r"<arg_key>(?P<key>[^<]++)</arg_key>\s*+<arg_value>", "</arg_value>")
    tags = ("<arg_key>{key}</arg_key>\n<arg_value>", "</arg_value>\n")
    written = CallSyntax("<tool_call>{name}\n", "</tool_call>", "\n")

    def block(self) -> GlmEnd:
        return GlmEnd()
