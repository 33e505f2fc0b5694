"""Tool-call and reasoning formats of a model, selected by name or from its chat template."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rondo.base.errors import ConfigError
from rondo.text.parsing.forced import Grammar, SpecialId, Thought, json_arguments
from rondo.text.parsing.formats import DeepSeek, Granite, Hermes, Jamba, KimiK2, Llama3, Mistral, Phi4
from rondo.text.parsing.harmony import FINAL, THOUGHT, Harmony
from rondo.text.parsing.harmony import MARKERS as HARMONY_MARKERS
from rondo.text.parsing.harmony import SHAPE as HARMONY_SHAPE
from rondo.text.parsing.marked import CallFormat, MarkedCalls, Tools
from rondo.text.parsing.markup import Dsml, Glm, MiniMax, QwenCoder, SeedOss
from rondo.text.parsing.parts import OutputParser
from rondo.text.parsing.pythonic import Olmo3, Pythonic
from rondo.text.parsing.think import Think

HARMONY = "openai"
CALLS: dict[str, type[CallFormat]] = {
    "hermes": Hermes,
    "qwen3_json": Hermes,
    "qwen3_coder": QwenCoder,
    "qwen3_xml": QwenCoder,
    "llama3_json": Llama3,
    "llama4_json": Llama3,
    "llama4_pythonic": Pythonic,
    "pythonic": Pythonic,
    "olmo3": Olmo3,
    "mistral": Mistral,
    "deepseek_v3": DeepSeek,
    "deepseek_v31": DeepSeek,
    "deepseek_v32": Dsml,
    "deepseek_v4": Dsml,
    "glm45": Glm,
    "glm47": Glm,
    "kimi_k2": KimiK2,
    "minimax_m2": MiniMax,
    "seed_oss": SeedOss,
    "granite": Granite,
    "jamba": Jamba,
    "phi4_mini_json": Phi4,
}
"""Tool-call formats by vLLM's names."""

_THINK = ("<think>", "</think>")
REASONING = {
    "deepseek_r1": _THINK,
    "qwen3": _THINK,
    "deepseek_v3": _THINK,
    "glm45": _THINK,
    "glm47": _THINK,
    "kimi_k2": _THINK,
    "minimax_m2": _THINK,
    "olmo3": _THINK,
    "step3": _THINK,
    "seed_oss": ("<seed:think>", "</seed:think>"),
    "mistral": ("[THINK]", "[/THINK]"),
}
HARMONY_REASONING = "openai_gptoss"
ALWAYS_REASON = ("deepseek_r1", "minimax_m2", "olmo3", "step3")
"""Reasoning formats whose answers start with reasoning even without an opening marker."""

TOOL_PARSERS = ("auto", "none", *CALLS, HARMONY)
REASONING_PARSERS = ("auto", "none", *REASONING, HARMONY_REASONING)

_CALLS_BY_TEMPLATE = (
    ("<|channel|>", HARMONY),
    ("<｜DSML｜", "deepseek_v32"),
    ("<｜tool▁call▁begin｜>", "deepseek_v3"),
    ("<|tool_call_begin|>", "kimi_k2"),
    ("[TOOL_CALLS]", "mistral"),
    ("<minimax:tool_call>", "minimax_m2"),
    ("<seed:tool_call>", "seed_oss"),
    ("<arg_key>", "glm45"),
    ("<function=", "qwen3_coder"),
    ("<tool_call>", "hermes"),
    ("<tool_calls>", "jamba"),
    ("<function_calls>", "olmo3"),
    ("<|python_tag|>", "llama3_json"),
    ('{"name": function name, "parameters":', "llama3_json"),
    ("<|python_start|>", "llama4_pythonic"),
    ("functools[", "phi4_mini_json"),
    ("<|tool_call|>", "granite"),
)
_REASONING_BY_TEMPLATE = (
    ("<|channel|>", HARMONY_REASONING),
    ("[THINK]", "mistral"),
    ("</seed:think>", "seed_oss"),
    ("</think>", "qwen3"),
    ("<think>", "qwen3"),
)


@dataclass(frozen=True)
class ToolCallFormat:
    """Tool-call and reasoning formats of a model; None if the model has none or the request does not use them."""

    calls: str | None = None
    reasoning: str | None = None

    def without_calls(self) -> ToolCallFormat:
        return ToolCallFormat(None, self.reasoning)

    @property
    def markers(self) -> tuple[str, ...]:
        """Special tokens that detokenization must not skip, because the parser needs them."""
        if self._harmony:
            return HARMONY_MARKERS
        format = CALLS[self.calls] if self.calls is not None else None
        written = () if format is None else (*format.starts, *format.noise, *format.inner)
        return (*written, *REASONING.get(self.reasoning or "", ()))

    def parser(self, prompt: str, tools: Tools = (), continued: bool = False) -> OutputParser | None:
        """A parser for the answer to `prompt`, of which the end suffices. With `continued`, `prompt` is the start of
        the answer itself. None: all of it is content."""
        if self._harmony:
            return Harmony(calls=self.calls is not None)
        calls = MarkedCalls(CALLS[self.calls](tools)) if self.calls is not None else None
        thought = self.thought(prompt, continued)
        return calls if thought is None else Think(thought.opening, thought.closing, thought.opened, calls)

    def grammar(
        self,
        special_id: SpecialId,
        template: str,
        thought: Thought | None,
        tools: Tools,
        form: Mapping[str, Any] | None = None,
        *,
        options: Mapping[str, Any] | None = None,
        parallel: bool = True,
    ) -> str:
        """Grammar of an answer that is calls of `tools` or JSON of the schema `form` (`options` are llguidance's), or
        either if both are set. Reasoning may precede it. `parser` parses every answer of the grammar."""
        grammar = Grammar(special_id, self.markers)
        choices = []
        if tools:
            choices.append(self._calls(grammar, template, tools, parallel))
        if form is not None:
            before = grammar.literal(FINAL) if self._harmony else ""
            choices.append(f"{before} {grammar.json('form', form, options or {})}")
        think = "" if thought is None else grammar.think(thought)
        return grammar.text(f"{think} ({' | '.join(choices)})")

    def _calls(self, grammar: Grammar, template: str, tools: Tools, parallel: bool) -> str:
        assert self.calls is not None
        format = None if self._harmony else CALLS[self.calls](tools)
        write = json_arguments if format is None else format.arguments
        arguments = {tool["name"]: write(grammar, f"arguments_{i}", tool) for i, tool in enumerate(tools)}
        return grammar.calls(HARMONY_SHAPE if format is None else format.shape(template), arguments, parallel)

    def thought(self, prompt: str, continued: bool = False) -> Thought | None:
        """The reasoning that the answer may start with; the arguments are the same as for `parser`."""
        if self._harmony:
            return None if continued else THOUGHT
        if self.reasoning is None:
            return None
        opening, closing = REASONING[self.reasoning]
        if continued:
            opened, closed = prompt.rfind(opening) > prompt.rfind(closing), closing in prompt
        else:
            opened, closed = prompt.rstrip().endswith(opening), prompt.rstrip().endswith(closing)
        always = self.reasoning in ALWAYS_REASON and not closed
        return Thought(opening, closing, opened or always)

    @property
    def _harmony(self) -> bool:
        return self.calls == HARMONY or self.reasoning == HARMONY_REASONING


def choose_dialect(template: str | None, calls: str = "auto", reasoning: str = "auto") -> ToolCallFormat:
    """Selects formats. `auto` detects them from the template's text."""
    _check("tool_call_parser", calls, TOOL_PARSERS)
    _check("reasoning_parser", reasoning, REASONING_PARSERS)
    return ToolCallFormat(
        _pick(calls, template or "", _CALLS_BY_TEMPLATE),
        _pick(reasoning, template or "", _REASONING_BY_TEMPLATE),
    )


def _pick(name: str, template: str, known: tuple[tuple[str, str], ...]) -> str | None:
    if name == "auto":
        return next((found for sign, found in known if sign in template), None)
    return None if name == "none" else name


def _check(field: str, name: str, names: tuple[str, ...]) -> None:
    if name not in names:
        raise ConfigError(f"{field} must be one of {', '.join(names)}; not {name!r}.", param=field)
