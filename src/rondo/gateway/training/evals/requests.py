"""Requests of the Evals API: evals, runs, and their data sources."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from rondo.base.errors import InvalidRequest
from rondo.gateway.routes.batches import Metadata
from rondo.gateway.training.graders import check_grader

THRESHOLD = 0.5
"""Share of the range from which on a score passes, of graders without `pass_threshold`."""
CRITERIA = 50
Named = Annotated[str, Field(min_length=1, max_length=256)]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid")


class CustomConfig(_Strict):
    """Items as a schema describes them; `schema` is the answer's name of `item_schema`."""

    type: Literal["custom"]
    item_schema: dict[str, Any]
    include_sample_schema: bool = False


class LogsConfig(_Strict):
    """Items from stored responses whose metadata have these values."""

    type: Literal["logs"]
    metadata: Metadata | None = None


class StoredCompletionsConfig(_Strict):
    """Items from stored chat completions whose metadata have these values."""

    type: Literal["stored_completions"]
    metadata: Metadata | None = None


SourceConfig = Annotated[CustomConfig | LogsConfig | StoredCompletionsConfig, Field(discriminator="type")]


class NewEval(_Strict):
    data_source_config: SourceConfig
    testing_criteria: list[dict[str, Any]] = Field(min_length=1, max_length=CRITERIA)
    name: Named | None = None
    metadata: Metadata | None = None


class EvalChange(_Strict):
    name: Named | None = None
    metadata: Metadata | None = None


class Entry(_Strict):
    item: dict[str, Any]
    sample: dict[str, Any] | None = None


class FileContent(_Strict):
    type: Literal["file_content"]
    content: list[Entry] = Field(min_length=1)


class FileId(_Strict):
    type: Literal["file_id"]
    id: str = Field(min_length=1, max_length=256)


class StoredCompletions(_Strict):
    """Stored chat completions of the key that match each given field."""

    type: Literal["stored_completions"]
    created_after: int | None = None
    created_before: int | None = None
    limit: int | None = Field(default=None, ge=1)
    metadata: Metadata | None = None
    model: str | None = None


class StoredResponsesSource(_Strict):
    """Stored responses of the key that match each given field."""

    type: Literal["responses"]
    created_after: int | None = None
    created_before: int | None = None
    instructions_search: str | None = None
    metadata: dict[str, Any] | None = None
    model: str | None = None
    reasoning_effort: str | None = None
    temperature: float | None = None
    tools: list[str] | None = None
    top_p: float | None = None
    users: list[str] | None = None


class TemplateMessage(_Strict):
    role: Literal["user", "assistant", "system", "developer"]
    content: str | dict[str, Any] | list[Any]
    type: Literal["message"] = "message"


class MessageTemplate(_Strict):
    type: Literal["template"]
    template: list[TemplateMessage] = Field(min_length=1)


class ItemReference(_Strict):
    """Path of the messages in the item, such as `item.input`."""

    type: Literal["item_reference"]
    item_reference: str = Field(min_length=1, max_length=256)


InputMessages = Annotated[MessageTemplate | ItemReference, Field(discriminator="type")]


class _Sampling(_Strict):
    max_completion_tokens: int | None = Field(default=None, ge=1)
    max_completions_tokens: int | None = Field(default=None, ge=1)
    """Name of the field above in some versions of OpenAI's clients."""
    reasoning_effort: str | None = None
    seed: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    tools: list[dict[str, Any]] | None = None

    @property
    def max_tokens(self) -> int | None:
        return self.max_completion_tokens or self.max_completions_tokens


class CompletionsSampling(_Sampling):
    response_format: dict[str, Any] | None = None


class ResponsesSampling(_Sampling):
    text: dict[str, Any] | None = None


class JsonlSource(_Strict):
    """Samples that exist already."""

    type: Literal["jsonl"]
    source: Annotated[FileContent | FileId, Field(discriminator="type")]


class CompletionsSource(_Strict):
    """Samples of `model` by chat completions; without a model, samples in the source."""

    type: Literal["completions"]
    source: Annotated[FileContent | FileId | StoredCompletions, Field(discriminator="type")]
    input_messages: InputMessages | None = None
    model: str | None = Field(default=None, min_length=1, max_length=256)
    sampling_params: CompletionsSampling | None = None


class ResponsesSource(_Strict):
    """Samples of `model` by responses; without a model, samples in the source."""

    type: Literal["responses"]
    source: Annotated[FileContent | FileId | StoredResponsesSource, Field(discriminator="type")]
    input_messages: InputMessages | None = None
    model: str | None = Field(default=None, min_length=1, max_length=256)
    sampling_params: ResponsesSampling | None = None


SampledSource = CompletionsSource | ResponsesSource
RunSource = Annotated[JsonlSource | CompletionsSource | ResponsesSource, Field(discriminator="type")]


class NewRun(_Strict):
    data_source: RunSource
    name: Named | None = None
    metadata: Metadata | None = None


def check_criteria(criteria: list[dict[str, Any]]) -> None:
    """Raises an error that names the wrong field of a criterion."""
    for place, each in enumerate(criteria):
        where = f"testing_criteria[{place}]"
        if not isinstance(each.get("name"), str) or not each["name"]:
            raise InvalidRequest(f"{where}.name is missing.", param=f"{where}.name")
        threshold = each.get("pass_threshold")
        if threshold is not None and (isinstance(threshold, bool) or not isinstance(threshold, int | float)):
            raise InvalidRequest(f"{where}.pass_threshold is a number.", param=f"{where}.pass_threshold")
        check_grader(grader_spec(each), where)
    names = Counter(each["name"] for each in criteria)
    if twice := [name for name, number in names.items() if number > 1]:
        raise InvalidRequest(f"Two criteria have the name {twice[0]!r}.", param="testing_criteria")


def grader_spec(criterion: Mapping[str, Any]) -> dict[str, Any]:
    """The criterion's grader."""
    return {name: value for name, value in criterion.items() if name not in ("pass_threshold", "id")}


def threshold_of(criterion: Mapping[str, Any]) -> float:
    """The score from which on a sample passes."""
    told = criterion.get("pass_threshold")
    if told is not None:
        return float(told)
    low, high = criterion.get("range") or (0.0, 1.0)
    return float(low + THRESHOLD * (high - low))


def check_source(source: RunSource) -> None:
    """Raises an error for a source that lacks a field."""
    if isinstance(source, JsonlSource):
        return
    if source.model is not None and source.input_messages is None:
        raise InvalidRequest(
            "data_source.input_messages is missing: a run with a model needs the messages for it.",
            param="data_source.input_messages",
        )
    if source.model is None and source.input_messages is not None:
        raise InvalidRequest(
            "data_source.model is missing: input_messages are sent to a model.", param="data_source.model"
        )


def shown_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """A data source's configuration as the API shows it, with the schema of the fields for criteria."""
    if config["type"] != "custom":
        return {"type": config["type"], "metadata": config.get("metadata"), "schema": _schema({}, True)}
    schema = _schema(config["item_schema"], bool(config.get("include_sample_schema")))
    return {"type": "custom", "schema": schema}


def _schema(item: Mapping[str, Any], sample: bool) -> dict[str, Any]:
    properties: dict[str, Any] = {"item": dict(item) or {"type": "object"}}
    if sample:
        text = {"type": "string"}
        properties["sample"] = {
            "type": "object",
            "properties": {"model": text, "output_text": text, "choices": {"type": "array"}},
        }
    return {"type": "object", "properties": properties, "required": list(properties)}


def parsed_source(text: str) -> RunSource:
    """The data source of a stored run."""
    return NewRun.model_validate({"data_source": json.loads(text)}).data_source
