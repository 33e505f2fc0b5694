"""The template language of OpenAI's graders: `{{ item.answer }}`, `{{ sample.output_json.steps[0].text }}`.

A template is expanded once: template syntax inside a policy's answer remains plain text.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from rondo.base.errors import ConfigError, InvalidRequest
from rondo.graders.score import Sample, Score

_SLOT = re.compile(r"\{\{(.*?)\}\}", re.DOTALL)
_STEP = re.compile(r"""\.([A-Za-z_0-9][\w-]*)|\[(\d{1,9})\]|\[(?:"([^"]*)"|'([^']*)')\]""")
_ROOT = re.compile(r"(sample|item)(?=[.\[])")
OUTPUTS = ("output_text", "output_json", "output_tools", "choices")
"""Fields of `sample`. OpenAI's `output_audio` is missing, because models here produce no audio."""

Step = str | int


class NotInOutput(Exception):
    """The answer lacks a field that a template uses: the policy's failure, with a score of 0."""

    def __init__(self, message: str, fault: str = "invalid_variable_error") -> None:
        super().__init__(message)
        self.fault = fault

    def score(self) -> Score:
        return Score("ok", 0.0, detail=str(self), faults={self.fault: str(self)})


@dataclass(frozen=True)
class _Path:
    written: str
    root: str
    steps: tuple[Step, ...]


@dataclass(frozen=True)
class Template:
    pieces: tuple[str | _Path, ...]

    def fill(self, sample: Sample) -> str:
        """Raises `NotInOutput` if the answer lacks a field, and `InvalidRequest` if the item lacks a field."""
        return "".join(
            piece if isinstance(piece, str) else _text(_found(piece, sample)) for piece in self.pieces
        )

    def check(self, sample: Sample) -> None:
        """Raises `InvalidRequest` if the item lacks a field."""
        for piece in self.pieces:
            if not isinstance(piece, str) and piece.root == "item":
                _found(piece, sample)


@lru_cache(1024)
def template(text: str, param: str = "input") -> Template:
    """`param` is the field with the template, for error messages."""
    pieces: list[str | _Path] = []
    end = 0
    for slot in _SLOT.finditer(text):
        pieces += [text[end : slot.start()], _path(slot.group(1).strip(), param)]
        end = slot.end()
    return Template((*pieces, text[end:]))


def item_of(sample: Sample) -> Mapping[str, Any]:
    """The record of the sample: `metadata["item"]`, or all metadata, together with the reference."""
    item = sample.metadata.get("item")
    fields = dict(item if isinstance(item, Mapping) else sample.metadata)
    if sample.reference is not None:
        fields.setdefault("reference", sample.reference)
    return fields


def sample_of(sample: Sample) -> dict[str, Any]:
    """OpenAI's `sample` as passed to Python graders; `output_json` is None if the answer is not JSON."""
    tools = sample.metadata.get("tool_calls") or []
    message = {"role": "assistant", "content": sample.completion, "tool_calls": tools}
    try:
        parsed = output_json(sample.completion)
    except NotInOutput:
        parsed = None
    return {
        "output_text": sample.completion,
        "output_json": parsed,
        "output_tools": tools,
        "choices": [{"index": 0, "message": message, "finish_reason": _finish(sample)}],
    }


def output_json(text: str) -> Any:
    try:
        return json.loads(text, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise NotInOutput(f"the answer is not JSON ({str(error)[:100]})", "sample_parse_error") from None


def _path(written: str, param: str) -> _Path:
    root = _ROOT.match(written)
    if root is None:
        raise ConfigError(
            f"{{{{ {written} }}}} in {param} must begin with `item.` or `sample.`, such as {{{{ item.answer }}}}.",
            param=param,
        )
    steps: list[Step] = []
    at = root.end()
    while at < len(written):
        step = _STEP.match(written, at)
        if step is None:
            raise ConfigError(
                f"{{{{ {written} }}}} in {param} is no path: write names and positions, as in item.names[0].first.",
                param=param,
            )
        name, position, *quoted = step.groups()
        steps.append(int(position) if position else next((q for q in quoted if q is not None), name))
        at = step.end()
    if root.group(1) == "sample" and steps[0] not in OUTPUTS:
        near = difflib.get_close_matches(str(steps[0]), OUTPUTS, n=1, cutoff=0)
        raise ConfigError(
            f"{{{{ {written} }}}} in {param}: a sample has {', '.join(OUTPUTS)}. Did you mean {near[0]}?",
            param=param,
        )
    return _Path(written, root.group(1), tuple(steps))


def _found(path: _Path, sample: Sample) -> Any:
    steps = path.steps
    if path.root == "item":
        value: Any = item_of(sample)
    elif steps[0] == "output_json":  # distinguishes invalid JSON from null
        value, steps = output_json(sample.completion), steps[1:]
    else:
        value = sample_of(sample) if steps[0] == "choices" else _outputs(sample)
    for step in steps:
        try:
            value = value[_step(value, step)]
        except (KeyError, IndexError, TypeError):
            raise _missing(path) from None
    return value


def _outputs(sample: Sample) -> dict[str, Any]:
    return {"output_text": sample.completion, "output_tools": sample.metadata.get("tool_calls") or []}


def _step(value: Any, step: Step) -> Step:
    """A string has no fields, and `.0` is an index into a list."""
    if isinstance(value, str) or not isinstance(value, Mapping | list | tuple):
        raise TypeError
    if isinstance(value, list | tuple) and isinstance(step, str) and step.isdecimal():
        return int(step)
    return step


def _missing(path: _Path) -> Exception:
    if path.root == "sample":
        return NotInOutput(f"the answer has no {path.written}")
    return InvalidRequest(f"the item has no {path.written}", param=path.written)


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _finish(sample: Sample) -> str:
    return "stop" if sample.metadata.get("finished", True) else "length"


def _no_constant(name: str) -> float:
    raise ValueError(f"{name} is no JSON")
