"""What a model wrote, taken apart as it comes: reasoning, content, tool calls."""

from rondo.text.parsing.dialect import Dialect, choose_dialect
from rondo.text.parsing.parts import Arguments, Call, Content, Parser, Part, Reasoning

__all__ = ["Arguments", "Call", "Content", "Dialect", "Parser", "Part", "Reasoning", "choose_dialect"]
