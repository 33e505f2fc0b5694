"""Settings of a submitted job, checked against the trainer's own settings before anything is stored."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any, Literal, get_args, get_origin

from pydantic import Field, create_model

from rondo.base.errors import ConfigError, InvalidRequest
from rondo.base.settings.config import Section, load
from rondo.base.settings.config_keys import SettingKey, keys_of, members
from rondo.jobs.spec import JobKind, JobSpec

MODEL = re.compile(r"[A-Za-z0-9][\w.@:-]{0,127}(/[A-Za-z0-9][\w.@:-]{0,127})?")
"""A model's name, a job's name or hash, or ORG/NAME of the hub; never a path."""
NAME = re.compile(r"[a-z0-9_]+(\.[a-z0-9_]+)*")
OWN = frozenset(
    [
        "data",
        "evaluate.data",
        "evaluate.tasks",
        "task",
        "save_to",
        "profile",
        "name",
        "model",
        "device",
        "offload_to",
    ]
)
"""Settings that name files, folders, devices and models: a request has fields for them, or they are the platform's."""
OWN_SECTIONS = ("engine.", "ray.", "metrics.", "rollouts.", "loader.")
MODELS = frozenset(["critic.model", "reward_model.model", "distill.teacher"])
RECIPES = ("preference", "reward")
"""Kinds of jobs with a section of settings of their own."""
GAMES = frozenset(["reverse", "add", "sort", "guess", "calculator"])
CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f\ud800-\udfff]")
LONGEST_ARGUMENT = 100_000
"""Characters of one setting: a process accepts no longer argument than 128 KiB."""


@cache
def tree_of(section: str) -> type[Section]:
    """A tree of the trainer's own settings. Their modules are imported with the first job, not with the gateway."""
    config: type[Section]
    if section == "rl":
        from rondo.rl.config import RlConfig as config
    else:
        from rondo.train.config import TrainConfig as config
    fields: dict[str, Any] = {section: (config, Field(config(), description="settings of the job"))}
    return create_model(f"{section}_settings", __base__=Section, **fields)


def flat(settings: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Dotted names and values of nested settings; `grader` is a value."""
    for name, value in settings.items():
        if isinstance(value, Mapping) and name != "grader":
            yield from flat(value, f"{prefix}{name}.")
        else:
            yield prefix + name, value


def own_settings(settings: Mapping[str, Any], section: str) -> dict[str, Any]:
    """Settings of a request by dotted name. Each is a setting that a user may make."""
    found = dict(flat(settings))
    known = keys_of(tree_of(section))
    for name, value in found.items():
        key = known.get(f"{section}.{name}") if NAME.fullmatch(name) else None
        if key is None or key.sections:
            raise InvalidRequest(
                f"settings.{name[:200]} is no setting: `rondo config --explain` lists those of {section}.",
                param=f"settings.{name[:200]}",
            )
        if not settable(name):
            raise InvalidRequest(
                f"settings.{name} cannot be set by a request: see the fields model, data, validation_data and task.",
                param=f"settings.{name}",
            )
        if name in MODELS and value:
            check_model(str(value), f"settings.{name}")
    return found


def settable(name: str, kind: JobKind | None = None) -> bool:
    """Whether a request may make the setting; with `kind`, only settings that concern jobs of this kind."""
    other = kind is not None and name.startswith(tuple(f"{each}." for each in RECIPES if each != kind))
    return not (other or name in OWN or name.startswith(OWN_SECTIONS))


def choices_of(key: SettingKey) -> list[str]:
    """The values of a setting that accepts only these."""
    types = [each for each in members(key.annotation) if each is not type(None)]
    if all(get_origin(each) is Literal for each in types):
        return [str(value) for each in types for value in get_args(each)]
    return []


def limits_of(key: SettingKey) -> tuple[float | None, float | None]:
    """The least and the largest value of a number; a limit itself may be excluded."""
    low = [bound for each in key.bounds for bound in (getattr(each, "ge", None), getattr(each, "gt", None))]
    high = [bound for each in key.bounds for bound in (getattr(each, "le", None), getattr(each, "lt", None))]
    return next((each for each in low if each is not None), None), next(
        (each for each in high if each is not None), None
    )


def check_model(model: str, param: str = "model") -> None:
    if not MODEL.fullmatch(model):
        raise InvalidRequest(
            f"{model[:200]!r} is no name of a model: give one from `GET /v1/models`, a job's hash, or ORG/NAME.",
            param=param,
        )


def check(spec: JobSpec) -> None:
    """Raises an InvalidRequest that names the wrong setting."""
    flags = [text for text in spec.arguments() if text.startswith(f"--{spec.section}.")]
    for flag in flags:
        if len(flag) > LONGEST_ARGUMENT or (not flag.isprintable() and CONTROL.search(flag)):
            name = flag[2:].partition("=")[0].removeprefix(f"{spec.section}.")
            raise InvalidRequest(
                f"settings.{name} is too long or contains control characters.", param=f"settings.{name}"
            )
    try:
        load(tree_of(spec.section), env={}, flags=flags)
    except ConfigError as error:
        prefix = f"{spec.section}."
        message = re.sub(rf"(--|\b){re.escape(prefix)}", "settings.", error.message)
        param = None if error.param is None else "settings." + error.param.removeprefix(prefix)
        raise InvalidRequest(message, param=param, code=error.code) from None
