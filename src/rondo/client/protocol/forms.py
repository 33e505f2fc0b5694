"""Structured output over HTTP: OpenAI's `response_format`, and vLLM's current and deprecated fields."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from rondo.base.errors import InvalidRequest
from rondo.client.protocol.wire import Many, WireModel
from rondo.client.structured import StructuredOutputsParams


class JsonSchema(WireModel):
    name: str = Field(max_length=64)
    description: str | None = None
    schema_: dict[str, Any] = Field(alias="schema")
    strict: bool | None = None


class Structure(WireModel):
    begin: str
    schema_: dict[str, Any] = Field(alias="schema")
    end: str


class ResponseFormat(WireModel):
    """OpenAI's types, vLLM's `structural_tag`, and the types of Hugging Face's servers, which have a `value`."""

    type: Literal["text", "json_object", "json_schema", "structural_tag", "json", "regex"]
    json_schema: JsonSchema | None = None
    structures: Many[Structure] | None = None
    triggers: Many[str] | None = None
    value: dict[str, Any] | str | None = None

    def form(self) -> StructuredOutputsParams | None:
        self._check()
        if self.value is not None:
            return self._of_value(self.value)
        if self.type == "json_object":
            return StructuredOutputsParams(json_object=True, param="response_format")
        if self.json_schema is not None:
            schema, strict = self.json_schema.schema_, bool(self.json_schema.strict)
            return StructuredOutputsParams(json=schema, strict=strict, param="response_format")
        if self.type == "structural_tag":
            structures = [structure.model_dump(by_alias=True) for structure in self.structures or ()]
            tag = {"structures": structures, "triggers": self.triggers}
            return StructuredOutputsParams(structural_tag=tag, param="response_format")
        return None

    def _of_value(self, value: dict[str, Any] | str) -> StructuredOutputsParams:
        """`value` is a pattern, a schema, or {name, schema} as in OpenAI's `json_schema`."""
        if self.type == "regex":
            if not isinstance(value, str):
                raise self._refusal("takes a text as value")
            return StructuredOutputsParams(regex=value, param="response_format")
        strict = False
        if isinstance(value, dict) and "schema" in value and value.keys() <= OF_A_SCHEMA:
            strict = value.get("strict") is True
            value = value["schema"]
        return StructuredOutputsParams(json=value, strict=strict, param="response_format")

    def _check(self) -> None:
        """Whether the fields that its type needs are given, and no others."""
        given = {name for name in FORMATS_FIELDS if getattr(self, name) is not None}
        allowed = FORMATS.get(self.type, (set(),))
        if given not in allowed:
            needs = " or ".join(" and ".join(sorted(each)) or "nothing else" for each in allowed)
            raise self._refusal(f"takes {needs}; got {', '.join(sorted(given)) or 'nothing'}")

    def _refusal(self, why: str) -> InvalidRequest:
        message = f"response_format of type {self.type!r} {why}."
        return InvalidRequest(message, param="response_format", code="invalid_value")


FORMATS: dict[str, tuple[set[str], ...]] = {
    "json_object": (set(), {"value"}),
    "json_schema": ({"json_schema"}, {"value"}),
    "structural_tag": ({"structures", "triggers"},),
    "json": ({"value"},),
    "regex": ({"value"},),
}
"""For each type, the sets of fields that it may come with."""
FORMATS_FIELDS = ("json_schema", "structures", "triggers", "value")
OF_A_SCHEMA = frozenset(["name", "description", "schema", "strict"])


class StructuredBody(WireModel):
    """vLLM's `structured_outputs`."""

    # A field called `json` would hide a method of pydantic's.
    json_: dict[str, Any] | str | None = Field(None, alias="json")
    json_object: bool | None = None
    regex: str | None = None
    choice: Many[str] | None = None
    grammar: str | None = None
    structural_tag: dict[str, Any] | str | None = None
    disable_any_whitespace: bool = False
    whitespace_pattern: str | None = None

    def form(self) -> StructuredOutputsParams:
        return StructuredOutputsParams(
            json=self.json_,
            json_object=bool(self.json_object),
            regex=self.regex,
            choice=self.choice,
            grammar=self.grammar,
            structural_tag=self.structural_tag,
            disable_any_whitespace=self.disable_any_whitespace,
            whitespace_pattern=self.whitespace_pattern,
        )


class FormBody(WireModel):
    """The fields of a request for structured output; at most one of them may be set."""

    response_format: ResponseFormat | None = None
    structured_outputs: StructuredBody | None = None
    guided_json: dict[str, Any] | str | None = None
    guided_regex: str | None = None
    guided_choice: Many[str] | None = None
    guided_grammar: str | None = None
    guided_whitespace_pattern: str | None = None

    def form(self) -> StructuredOutputsParams | None:
        forms = [form for form in self._forms() if form is not None]
        if len(forms) > 1:
            names = " and ".join(form.param for form in forms)
            raise InvalidRequest(f"{names} exclude each other: give one of them.", param=forms[1].param)
        if self.guided_whitespace_pattern is not None and self.guided_json is None:
            raise InvalidRequest(
                "guided_whitespace_pattern needs guided_json.", param="guided_whitespace_pattern"
            )
        return forms[0] if forms else None

    def _forms(self) -> list[StructuredOutputsParams | None]:
        forms = [
            None if self.response_format is None else self.response_format.form(),
            None if self.structured_outputs is None else self.structured_outputs.form(),
        ]
        for kind in ("json", "regex", "choice", "grammar"):
            value = getattr(self, f"guided_{kind}")
            if value is not None:
                spaces = self.guided_whitespace_pattern if kind == "json" else None
                given = {kind: value, "whitespace_pattern": spaces, "param": f"guided_{kind}"}
                forms.append(StructuredOutputsParams(**given))
        return forms
