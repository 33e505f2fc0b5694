"""Judge models: OpenAI's `score_model` and `label_model`, through any OpenAI endpoint.

The judge's answer is validated. An invalid verdict has the outcome `error` and never a score of 0, because it is no
measurement of the sample.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from rondo.base.errors import ConfigError
from rondo.base.telemetry.log import get_logger
from rondo.graders.definition.templates import NotInOutput, template
from rondo.graders.judges.endpoint import Endpoint, used
from rondo.graders.score import Sample, Score

_log = get_logger(__name__)

Role = Literal["user", "assistant", "system", "developer"]
_ROLES = {"user": "user", "assistant": "assistant", "system": "system", "developer": "system"}
_SAMPLING = {  # OpenAI's names in a grader -> in a request
    "max_completions_tokens": "max_completion_tokens",
    "max_completion_tokens": "max_completion_tokens",
    "reasoning_effort": "reasoning_effort",
    "seed": "seed",
    "temperature": "temperature",
    "top_p": "top_p",
}


class NoVerdict(Exception):
    """The judge's answer is not a valid verdict."""

    fault = "model_grader_parse_error"


class JudgeRefusal(NoVerdict):
    """The judge refused to answer."""

    fault = "model_grader_refusal_error"


@dataclass(frozen=True)
class ScoreModel:
    """The number in the judge's answer, within `range`."""

    input: Sequence[Mapping[str, Any]]
    model: str
    range: tuple[float, float] = (0.0, 1.0)
    sampling_params: Mapping[str, Any] = field(default_factory=dict)
    endpoint: Endpoint = field(default_factory=Endpoint)
    structured: bool = True
    """Whether the endpoint supports `response_format`; otherwise the prompt describes the JSON."""
    garbage_retries: int = 1
    """Number of retries after an invalid verdict."""

    def __post_init__(self) -> None:
        low, high = self.range
        if not (math.isfinite(low) and math.isfinite(high) and low < high):
            raise ConfigError(
                f"range is {list(self.range)}; it must be two numbers, the lower first.", param="range"
            )
        _check(self.input, self.model, self.sampling_params)

    def check_sample(self, sample: Sample) -> None:
        _check_fields(self.input, sample)

    async def score(self, sample: Sample) -> Score:
        low, high = self.range
        schema = _schema("result", {"type": "number", "description": f"the score, from {low:g} to {high:g}"})
        form = f'{{"steps": [...], "result": <a number from {low:g} to {high:g}>}}'
        return await _judged(self, sample, schema, form, lambda said: _number(said, low, high))


@dataclass(frozen=True)
class LabelModel:
    """1 if the judge chooses a label of `passing_labels`, else 0."""

    input: Sequence[Mapping[str, Any]]
    model: str
    labels: tuple[str, ...]
    passing_labels: tuple[str, ...]
    sampling_params: Mapping[str, Any] = field(default_factory=dict)
    endpoint: Endpoint = field(default_factory=Endpoint)
    structured: bool = True
    garbage_retries: int = 1

    def __post_init__(self) -> None:
        if not self.labels:
            raise ConfigError("labels must name at least one label.", param="labels")
        if not set(self.passing_labels) <= set(self.labels):
            raise ConfigError(
                f"passing_labels has {sorted(set(self.passing_labels) - set(self.labels))}, which labels lacks.",
                param="passing_labels",
            )
        _check(self.input, self.model, self.sampling_params)

    def check_sample(self, sample: Sample) -> None:
        _check_fields(self.input, sample)

    async def score(self, sample: Sample) -> Score:
        schema = _schema("label", {"type": "string", "enum": list(self.labels)})
        form = f'{{"steps": [...], "label": <one of {", ".join(self.labels)}>}}'

        def read(said: str) -> float:
            label = _field(said, "label", said.strip())
            if label not in self.labels:
                raise NoVerdict(f"the label {str(label)[:100]!r} is none of the labels")
            return float(label in self.passing_labels)

        return await _judged(self, sample, schema, form, read)


Judge = ScoreModel | LabelModel


async def _judged(judge: Judge, sample: Sample, schema: dict[str, Any], form: str, read: Any) -> Score:
    try:
        messages = _filled(judge.input, sample)
    except NotInOutput as error:
        return error.score()
    body: dict[str, Any] = {"model": judge.model, "messages": messages, **_options(judge.sampling_params)}
    if judge.structured:
        body["response_format"] = {"type": "json_schema", "json_schema": schema}
    else:
        body["messages"] = [*messages, {"role": "user", "content": f"Answer with JSON alone: {form}"}]
    problem, tokens = NoVerdict(), 0
    for _ in range(judge.garbage_retries + 1):
        try:
            answer = await judge.endpoint.chat(body)
        except TimeoutError as error:
            return Score("timeout", 0.0, detail=str(error), faults={"model_grader_server_error": str(error)})
        tokens += sum(used(answer))
        try:
            return Score("ok", read(_content(answer)), detail=f"{tokens} tokens of {judge.model}")
        except NoVerdict as error:
            problem = error
    _log.warning("a judge gave no verdict: %s", problem, extra={"judge": judge.model})
    said = f"{judge.model} gave no verdict: {problem}"
    return Score("error", 0.0, detail=said, faults={problem.fault: said})


def _check(messages: Sequence[Mapping[str, Any]], model: str, sampling: Mapping[str, Any]) -> None:
    if not model:
        raise ConfigError("model must name the model that judges.", param="model")
    if not messages:
        raise ConfigError("input must hold at least one message.", param="input")
    for at, message in enumerate(messages):
        where = f"input[{at}]"
        if message.get("role") not in _ROLES:
            raise ConfigError(
                f"{where}.role is {message.get('role')!r}; it must be one of {', '.join(_ROLES)}.",
                param=f"{where}.role",
            )
        template(_written(message.get("content"), where), where)
        if unknown := set(message) - {"role", "content", "type"}:
            raise ConfigError(f"{where} has {sorted(unknown)}, which no message has.", param=where)
    for name in sampling:
        if name not in _SAMPLING:
            raise ConfigError(
                f"sampling_params has no {name!r}, but {', '.join(_SAMPLING)}.",
                param=f"sampling_params.{name}",
            )


def _written(content: Any, where: str) -> str:
    """Text of a message, from a string or from text parts."""
    if isinstance(content, str):
        return content
    if isinstance(content, Mapping):
        kind, text = content.get("type"), content.get("text")
        if kind in ("input_text", "output_text") and isinstance(text, str):
            return text
        raise ConfigError(
            f"{where}.content has a part of type {kind!r}; only text can be judged.", param=where
        )
    if isinstance(content, list | tuple) and content:
        return "\n".join(_written(part, where) for part in content)
    raise ConfigError(f"{where}.content must be text.", param=f"{where}.content")


def _check_fields(messages: Sequence[Mapping[str, Any]], sample: Sample) -> None:
    for at, message in enumerate(messages):
        template(_written(message["content"], "input"), f"input[{at}]").check(sample)


def _filled(messages: Sequence[Mapping[str, Any]], sample: Sample) -> list[dict[str, str]]:
    texts = [_written(message["content"], "input") for message in messages]
    return [
        {"role": _ROLES[message["role"]], "content": template(text, f"input[{at}]").fill(sample)}
        for at, (message, text) in enumerate(zip(messages, texts, strict=True))
    ]


def _options(sampling: Mapping[str, Any]) -> dict[str, Any]:
    return {_SAMPLING[name]: value for name, value in sampling.items() if value is not None}


def _schema(name: str, verdict: dict[str, Any]) -> dict[str, Any]:
    """Schema with the reasoning steps before the verdict: reasoning first makes verdicts more accurate."""
    step = {
        "type": "object",
        "properties": {"description": {"type": "string"}, "conclusion": {"type": "string"}},
        "required": ["description", "conclusion"],
        "additionalProperties": False,
    }
    properties = {"steps": {"type": "array", "items": step}, name: verdict}
    schema = {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }
    return {"name": "verdict", "strict": True, "schema": schema}


def _content(answer: Mapping[str, Any]) -> str:
    try:
        message = answer["choices"][0]["message"]
        content = message.get("content")
    except (KeyError, IndexError, TypeError, AttributeError):
        raise NoVerdict("there is no choice with a message") from None
    if not isinstance(content, str) or not content.strip():
        refusal = message.get("refusal")
        raise JudgeRefusal(f"it refused: {str(refusal)[:200]}") if refusal else NoVerdict("it said nothing")
    return content


def _field(said: str, name: str, alone: Any) -> Any:
    """Field of the requested JSON; `alone` if the answer is not a JSON object."""
    try:
        found = json.loads(_unfenced(said))
    except (ValueError, RecursionError):
        return alone
    return found.get(name) if isinstance(found, dict) else alone


def _unfenced(said: str) -> str:
    """Content of an answer that is one fenced block."""
    text = said.strip()
    fenced = text.startswith("```") and text.endswith("```")
    return text[3:-3].removeprefix("json") if fenced else said


def _number(said: str, low: float, high: float) -> float:
    found = _field(said, "result", said)
    try:
        value = math.nan if isinstance(found, bool | None) else float(found)
    except (TypeError, ValueError, OverflowError):
        raise NoVerdict(f"{str(found)[:100]!r} is no number") from None
    if not low <= value <= high:  # also false for NaN
        raise NoVerdict(f"{str(found)[:100]!r} is no number from {low:g} to {high:g}")
    return value
