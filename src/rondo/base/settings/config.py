"""The typed config tree: defaults, then a TOML file, then `RONDO_*` variables, then `--a.b=c` flags.

A tree is a pydantic model made of `Section`s. `load` records the source of each value; a wrong key or value is a
`ConfigError` with the key, its source and the valid alternative.
"""

import logging
import os
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from pathlib import Path
from typing import Any, Generic, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic_core import ErrorDetails

from rondo.base.errors import ConfigError
from rondo.base.settings.config_keys import (
    SettingKey,
    env_names,
    holds_bool,
    is_secret,
    keys_of,
    members,
    not_a_section,
    takes_bool,
    unknown_key,
)
from rondo.base.settings.config_text import from_text, is_bool_word, toml_lines

log = logging.getLogger("rondo.base.settings.config")

ENV_PREFIX = "RONDO_"
RESERVED = frozenset(
    ENV_PREFIX + name
    for name in (
        *(
            "HOME",
            "CONFIG",
            "DEBUG",
            "API_KEY",
            "ADMIN_KEY",
            "WEIGHTS_KEY",
            "BASE_URL",
            "STORE_URL",
            "JOB_REPORT",
            "OPS",
            "NATIVE",
            "CPU",
            "KERNELS",
            "TRITON",
        ),
        *(
            "VLLM_PARENT",
            "VLLM_FOLDER",
        ),  # of a vLLM that is ours: the process with which it ends, and its files
        *(
            "PEERS",
            "RECOVERY_REPORT",
            "BENCH_THREADS",
            "BENCH_TRL_MICROBATCHES",
        ),  # of the benchmarks and the tests with peers
    )
)
"""Variables with a meaning of their own, outside the tree."""


class Section(BaseModel):
    """A part of the tree: every field has a default and a description; unknown keys are errors."""

    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True, protected_namespaces=())

    def default_of(self, name: str) -> str:
        """Source of the field's value if it is not set; empty: the field's own default."""
        return ""


@dataclass(frozen=True)
class SettingSource:
    kind: Literal["default", "file", "env", "flag"]
    where: str = ""

    def __str__(self) -> str:
        return self.where or self.kind


Tree = TypeVar("Tree", bound=Section)


@dataclass(frozen=True)
class Loaded(Generic[Tree]):
    tree: Tree
    sources: dict[str, SettingSource]
    """One entry a leaf of the tree, by its dotted path."""

    def rows(self) -> Iterator[tuple[str, object, SettingSource]]:
        for path, value in leaves(self.tree):
            yield path, value, self.sources[path]


@dataclass(frozen=True)
class _Setting:
    value: object
    source: SettingSource


def load(
    tree: type[Tree],
    file: str | Path | None = None,
    env: Mapping[str, str] | None = None,
    flags: Sequence[str] = (),
) -> Loaded[Tree]:
    """Reads all sources into one checked tree. `env` is the process's environment unless given."""
    keys = keys_of(tree)
    settings: dict[str, _Setting] = {}
    for part in (
        _from_file(keys, Path(file)) if file is not None else {},
        _from_env(keys, os.environ if env is None else env),
        _from_flags(keys, flags),
    ):
        for path, setting in part.items():
            _put(settings, path, setting)
    for path, setting in settings.items():
        _refuse_bools(keys, path, setting.value, setting.source)
    try:
        made = tree.model_validate(_nest(settings))
    except ValidationError as error:
        raise _explain(error, keys, settings) from None
    sources = {path: _source_of(path, settings) or _default_of(made, path) for path, _ in leaves(made)}
    return Loaded(made, sources)


def _default_of(tree: Section, path: str) -> SettingSource:
    *sections, name = path.split(".")
    section = reduce(getattr, sections, tree)
    return SettingSource("default", section.default_of(name))


def leaves(section: BaseModel, prefix: str = "") -> Iterator[tuple[str, object]]:
    """(dotted path, value) of each value in the tree, in the order of declaration."""
    for name in type(section).model_fields:
        value = getattr(section, name)
        if isinstance(value, BaseModel):
            yield from leaves(value, f"{prefix}{name}.")
        else:
            yield prefix + name, value


def _from_file(keys: dict[str, SettingKey], file: Path) -> dict[str, _Setting]:
    try:
        text = file.read_text("utf-8")
        data = tomllib.loads(text)
    except FileNotFoundError:
        raise ConfigError(f"There is no config file {file}.") from None
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{file} is not valid TOML: {error}") from None
    except OSError as error:
        raise ConfigError(f"Cannot read the config file {file}: {error.strerror}.") from None
    lines = toml_lines(text)

    def source(path: str) -> SettingSource:
        known = path
        while known and known not in lines:
            known = known.rpartition(".")[0]
        return SettingSource("file", f"{file}:{lines[known]}" if known else str(file))

    settings: dict[str, _Setting] = {}

    def walk(table: dict[str, Any], prefix: str) -> None:
        for name, value in table.items():
            path = prefix + name
            if path not in keys or "." in name:  # a quoted "a.b" is one name, which no key has
                raise unknown_key(path, str(source(path)), keys)
            if isinstance(value, dict) and keys[path].sections:
                walk(value, path + ".")
                if not value:
                    settings[path] = _Setting({}, source(path))
            elif keys[path].sections:
                raise not_a_section(path, str(source(path)), keys)
            else:
                if isinstance(value, str) and int in members(keys[path].annotation):
                    value = from_text(keys[path].annotation, value, path, str(source(path)))  # "16k"
                settings[path] = _Setting(value, source(path))

    walk(data, "")
    return settings


def _from_env(keys: dict[str, SettingKey], env: Mapping[str, str]) -> dict[str, _Setting]:
    names = env_names(keys, ENV_PREFIX)
    tops = {path for path, key in keys.items() if key.sections and "." not in path}
    settings: dict[str, _Setting] = {}
    for name in sorted(env):
        if not name.startswith(ENV_PREFIX) or name in RESERVED:
            continue
        rest = name.removeprefix(ENV_PREFIX).lower()
        dotted = rest.replace("__", ".")
        paths = [dotted] if dotted in keys else names.get(name, [])
        if len(paths) > 1:
            choices = " or ".join(ENV_PREFIX + path.upper().replace(".", "__") for path in paths)
            raise ConfigError(f"{name} could mean {' or '.join(paths)}. Write {choices}.")
        if paths:
            settings.update(_text_settings(keys, paths[0], env[name], SettingSource("env", name)))
        elif any(rest.startswith(top + "_") or rest == top for top in tops):
            raise unknown_key(dotted, f"the environment variable {name}", keys, flat=rest)
        else:
            log.warning("the environment variable %s is not one that Rondo knows; it has no effect", name)
    return settings


def _from_flags(keys: dict[str, SettingKey], flags: Sequence[str]) -> dict[str, _Setting]:
    settings: dict[str, _Setting] = {}
    rest = list(flags)
    while rest:
        flag = rest.pop(0)
        if not flag.startswith("--") or flag == "--":
            raise ConfigError(f"{flag!r} is not a setting. Settings are written --section.key=value.")
        name, equals, text = flag[2:].partition("=")
        path = name.replace("-", "_")
        if path not in keys:
            raise unknown_key(path, f"the flag --{name}", keys)
        if not equals:
            text = _flag_value(keys[path], name, rest)
        settings.update(_text_settings(keys, path, text, SettingSource("flag", f"--{name}")))
    return settings


def split_flags(tree: type[Section], argv: Sequence[str]) -> tuple[list[str], list[str]]:
    """(settings, the rest): a setting is a flag with a dot in its name, and its value."""
    keys = keys_of(tree)
    flags: list[str] = []
    rest: list[str] = []
    left = list(argv)
    while left:
        token = left.pop(0)
        if token == "--":
            rest += [token, *left]
            break
        name, equals, _ = token[2:].partition("=")
        path = name.replace("-", "_")
        if not token.startswith("--") or "." not in name:
            rest.append(token)
        elif equals or path not in keys:
            flags.append(token)
        else:
            flags.append(f"{token}={_flag_value(keys[path], name, left)}")
    return flags, rest


def _flag_value(key: SettingKey, name: str, rest: list[str]) -> str:
    """The value written after the flag; a lone boolean flag means true."""
    if key.is_bool and not (rest and is_bool_word(rest[0])):
        return "true"
    if not rest or rest[0].startswith("--"):
        raise ConfigError(f"The flag --{name} needs a value: --{name}=...")
    return rest.pop(0)


def _text_settings(
    keys: dict[str, SettingKey], path: str, text: str, source: SettingSource
) -> dict[str, _Setting]:
    value = from_text(keys[path].annotation, text, path, str(source))
    if not keys[path].sections or value is None:
        return {path: _Setting(value, source)}
    if not isinstance(value, dict):
        raise not_a_section(path, str(source), keys)
    for name in value:
        if f"{path}.{name}" not in keys or "." in name:
            raise unknown_key(f"{path}.{name}", str(source), keys)
    return {f"{path}.{name}": _Setting(inner, source) for name, inner in value.items()}


def _put(settings: dict[str, _Setting], path: str, setting: _Setting) -> None:
    """A later source wins: settings that it replaces, above or below, are removed."""
    for other in list(settings):
        if other == path or other.startswith(path + ".") or path.startswith(other + "."):
            del settings[other]
    settings[path] = setting


def _refuse_bools(keys: dict[str, SettingKey], path: str, value: object, source: SettingSource) -> None:
    """Pydantic takes true for 1, so `port = true` would be port 1."""
    if path in keys and keys[path].sections:
        for name, inner in value.items() if isinstance(value, dict) else ():
            _refuse_bools(keys, f"{path}.{name}", inner, source)
    elif path in keys and holds_bool(value) and not takes_bool(keys[path].annotation):
        given = "********" if is_secret(path) else repr(value)
        said = f"{path} = {given} ({source}) is wrong: true and false have no meaning here."
        raise ConfigError(said, param=path, code="invalid_value")


def _nest(settings: dict[str, _Setting]) -> dict[str, Any]:
    root: dict[str, Any] = {}
    for path, setting in settings.items():
        *parents, name = path.split(".")
        here = root
        for parent in parents:
            here = here.setdefault(parent, {})
        here[name] = setting.value
    return root


def _source_of(path: str, settings: dict[str, _Setting]) -> SettingSource | None:
    while path:
        if path in settings:
            return settings[path].source
        path = path.rpartition(".")[0]
    return None


def _explain(
    error: ValidationError, keys: dict[str, SettingKey], settings: dict[str, _Setting]
) -> ConfigError:
    details = error.errors()
    lines = [_explain_one(detail, keys, settings) for detail in details]
    path = _path_of(details[0], keys)
    about = next(iter(_settings_in(details[0]["msg"], path, settings)), path)
    return ConfigError(" ".join(dict.fromkeys(lines)), param=about, code="invalid_value")


def _settings_in(message: str, section: str, settings: dict[str, _Setting]) -> list[str]:
    """The settings of a section that the message of a rule about several fields names, in its order."""
    above = f"{section}." if section else ""
    found: dict[str, int] = {}
    for path in settings:
        name = path.removeprefix(above)
        named = re.search(rf"(?<![\w.])(?:{re.escape(above)})?{re.escape(name)}(?![\w]|\.\w)", message)
        if path.startswith(above) and named:
            found[path] = named.start()
    return sorted(found, key=lambda path: found[path])


def _path_of(detail: ErrorDetails, keys: dict[str, SettingKey]) -> str:
    """The config path of an error's location, without union tags and indices inside a value."""
    path = ""
    for part in detail["loc"]:
        longer = f"{path}.{part}" if path else str(part)
        if longer in keys:
            path = longer
    return path


def _explain_one(detail: ErrorDetails, keys: dict[str, SettingKey], settings: dict[str, _Setting]) -> str:
    path = _path_of(detail, keys)
    source = _source_of(path, settings)
    message = detail["msg"].removeprefix("Value error, ").rstrip(".")
    if detail["type"] == "dict_type":
        message = 'it must be a JSON object, as {"name": "value"}, or a table in a file'
    place = path or "the config"
    if keys.get(path) is None or keys[path].sections:
        named = dict.fromkeys(str(settings[p].source) for p in _settings_in(message, path, settings))
        where = ", ".join(named) or (str(source) if source else "")
        return f"{place}{f' ({where})' if where else ''} is wrong: {message}."
    rest = [str(part) for part in detail["loc"][len(path.split(".")) :] if isinstance(part, int)]
    inside = f" at position {'.'.join(rest)}" if rest else ""
    given = "********" if is_secret(path) else repr(detail["input"])
    return f"{path} = {given} ({source or 'default'}) is wrong{inside}: {message}."
