"""Registry of graders by type, from JSON or TOML: `grader_of({"type": "math"})`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from rondo.base.errors import ConfigError
from rondo.graders.definition.combine import Multi, combine
from rondo.graders.definition.spec import build, located, refuse_unknown
from rondo.graders.execution.code import CodeGrader
from rondo.graders.execution.function import FunctionGrader
from rondo.graders.execution.python import PythonGrader
from rondo.graders.guarded import guarded
from rondo.graders.judges.judge import LabelModel, ScoreModel
from rondo.graders.rules.choice import ChoiceGrader
from rondo.graders.rules.format import FormatChecker
from rondo.graders.rules.match import AnswerMatcher
from rondo.graders.rules.mathematics import MathAnswer
from rondo.graders.rules.similarity import TextSimilarity
from rondo.graders.rules.string_check import StringCheck
from rondo.graders.sandbox.shared import shared
from rondo.graders.score import Grader

Maker = Callable[[Mapping[str, Any], str], Grader]
DEEPEST = 8
"""Maximum nesting depth of graders."""


def _made(cls: type[Any]) -> Maker:
    return lambda spec, where: build(cls, spec, where)


def _code(spec: Mapping[str, Any], where: str) -> Grader:
    """Its sandbox is shared and selected by the packages that programs may import."""
    rest = {name: value for name, value in spec.items() if name not in ("packages", "sandbox")}
    refuse_unknown(spec, (*rest, "packages"), where)
    packages = spec.get("packages", [])
    if not isinstance(packages, list | tuple) or not all(isinstance(each, str) for each in packages):
        raise ConfigError(f"{where}.packages is a list of folders.", param=f"{where}.packages")
    try:
        sandbox = shared(tuple(packages))
    except ConfigError as error:
        raise located(error, where) from error
    return replace(build(CodeGrader, rest, where), sandbox=sandbox)


def _multi(spec: Mapping[str, Any], where: str) -> Grader:
    refuse_unknown(spec, ("type", "name", "timeout_s", "graders", "calculate_output"), where)
    formula = spec.get("calculate_output")
    if not isinstance(formula, str):
        raise ConfigError(
            f"{where} needs calculate_output, a formula over its graders' names.",
            param=f"{where}.calculate_output",
        )
    graders = {name: grader_of(each, f"{where}.graders.{name}") for name, each in _inner(spec, where).items()}
    try:
        return Multi(graders, formula)
    except ConfigError as error:
        raise located(error, where) from error


def _weighted(spec: Mapping[str, Any], where: str) -> Grader:
    refuse_unknown(spec, ("type", "name", "timeout_s", "graders"), where)
    inner = _inner(spec, where)
    weights: dict[str, float] = {}
    graders: dict[str, Grader] = {}
    for name, each in inner.items():
        weight = each.get("weight", 1.0)
        if not isinstance(weight, int | float) or isinstance(weight, bool):
            at = f"{where}.graders.{name}.weight"
            raise ConfigError(f"{at} = {weight!r} is wrong: it must be a number.", param=at)
        weights[name] = float(weight)
        rest = {key: value for key, value in each.items() if key != "weight"}
        graders[name] = grader_of(rest, f"{where}.graders.{name}")
    try:
        return combine(graders, weights)
    except ConfigError as error:
        raise located(error, where) from error


GRADERS: dict[str, Maker] = {
    "string_check": _made(StringCheck),
    "text_similarity": _made(TextSimilarity),
    "score_model": _made(ScoreModel),
    "label_model": _made(LabelModel),
    "python": _made(PythonGrader),
    "multi": _multi,
    "weighted": _weighted,
    "match": _made(AnswerMatcher),
    "math": _made(MathAnswer),
    "choice": _made(ChoiceGrader),
    "format": _made(FormatChecker),
    "code": _code,
    "function": _made(FunctionGrader),
}


def grader_of(spec: Mapping[str, Any], where: str = "grader") -> Grader:
    """`where` is the name of the spec in errors. With `timeout_s` the grader is guarded, under its name."""
    if not isinstance(spec, Mapping):
        raise ConfigError(f"{where} is a table with a type, not {str(spec)[:100]!r}.", param=where)
    if where.count(".graders.") > DEEPEST:
        raise ConfigError(f"{where} is more than {DEEPEST} graders deep.", param=where)
    kind, name = spec.get("type"), spec.get("name", str(spec.get("type")))
    if kind is None:
        raise ConfigError(f"{where} needs a type: one of {', '.join(GRADERS)}.", param=f"{where}.type")
    if not isinstance(name, str) or not name:
        raise ConfigError(f"{where}.name is {name!r}; it must be text.", param=f"{where}.name")
    if kind not in GRADERS:
        try:
            refuse_unknown([kind], GRADERS, where)
        except ConfigError as error:
            said = error.message.replace("has no field", "has no type")
            raise ConfigError(said, param=f"{where}.type", code="unknown_type") from None
    grader = GRADERS[kind](spec, where)
    limit = spec.get("timeout_s")
    if limit is None:
        return grader
    if not isinstance(limit, int | float) or isinstance(limit, bool) or limit <= 0:
        raise ConfigError(
            f"{where}.timeout_s = {limit!r} is wrong: it must be above 0.", param=f"{where}.timeout_s"
        )
    return guarded(grader, float(limit), name)


def _inner(spec: Mapping[str, Any], where: str) -> Mapping[str, Mapping[str, Any]]:
    """The nested graders of a spec, by name. OpenAI's library also allows a single one, under its own name."""
    inner = spec.get("graders")
    if isinstance(inner, Mapping) and isinstance(inner.get("type"), str):
        inner = {str(inner.get("name", "grader")): inner}
    if not isinstance(inner, Mapping) or not inner:
        raise ConfigError(f"{where} needs graders: a table of them by name.", param=f"{where}.graders")
    for name, each in inner.items():
        at = f"{where}.graders.{name}"
        if not str(name).isidentifier():
            raise ConfigError(f"{at}: a grader's name is a word of letters, digits and _.", param=at)
        if not isinstance(each, Mapping):
            raise ConfigError(f"{at} is a table with a type, not {str(each)[:100]!r}.", param=at)
    return inner
