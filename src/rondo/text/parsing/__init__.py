"""Streaming parsers of a model's output: reasoning, content, tool calls."""

from rondo.text.parsing.dialect import ToolCallFormat, choose_dialect
from rondo.text.parsing.parts import ArgumentsDelta, Call, Content, OutputParser, Part, Reasoning

__all__ = [
    "ArgumentsDelta",
    "Call",
    "Content",
    "OutputParser",
    "Part",
    "Reasoning",
    "ToolCallFormat",
    "choose_dialect",
]
