"""How HTTP asks for answers of a given form: OpenAI's `response_format`, and vLLM's fields old and new."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from rondo.base.errors import InvalidRequest
from rondo.client.structured import StructuredOutputsParams
from rondo.client.wire import Many, Wire


class JsonSchema(Wire):
    name: str = Field(max_length=64)
    description: str | None = None
    schema_: dict[str, Any] = Field(alias="schema")
    strict: bool | None = None


class Structure(Wire):
    begin: str
    schema_: dict[str, Any] = Field(alias="schema")
    end: str


class ResponseFormat(Wire):
    type: Literal["text", "json_object", "json_schema", "structural_tag"]
    json_schema: JsonSchema | None = None
    structures: Many[Structure] | None = None
    triggers: Many[str] | None = None

    def form(self) -> StructuredOutputsParams | None:
        self._check()
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

    def _check(self) -> None:
        """Whether it has what its type needs, and nothing else."""
        own = {"json_schema": {"json_schema"}, "structural_tag": {"structures", "triggers"}}.get(
            self.type, set()
        )
        given = {
            name for name in ("json_schema", "structures", "triggers") if getattr(self, name) is not None
        }
        if own != given:
            needs = " and ".join(sorted(own)) or "nothing else"
            raise InvalidRequest(
                f"response_format of type {self.type!r} takes {needs}; got {', '.join(sorted(given)) or 'nothing'}.",
                param="response_format",
                code="invalid_value",
            )


class StructuredBody(Wire):
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


class FormBody(Wire):
    """The fields of a request that say what form its answers have; at most one of them may be given."""

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
