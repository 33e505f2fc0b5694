"""The shape of a config tree: which keys exist, and errors that name the key that was meant."""

import difflib
import inspect
import types
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Union, get_args, get_origin

from pydantic import BaseModel

from rondo.base.errors import ConfigError

SECRETS = ("_key", "_token", "_secret", "_password")


@dataclass(frozen=True)
class SettingKey:
    annotation: Any
    description: str
    sections: tuple[type[BaseModel], ...]
    """The sections that may stand here; empty for a plain value."""
    default: Any = None
    bounds: tuple[Any, ...] = ()
    """Pydantic's constraints of the value, such as Gt(0)."""
    examples: tuple[Any, ...] = ()
    """Usual values of a key that accepts any text, for completion."""
    owner: type[BaseModel] = BaseModel
    """The class that declares the key."""

    @property
    def is_bool(self) -> bool:
        return bool in members(self.annotation)


def members(annotation: Any) -> tuple[Any, ...]:
    """The alternatives of a type: `int | None` -> (int, NoneType); anything else is alone."""
    origin = get_origin(annotation)
    if origin is Annotated:
        return members(get_args(annotation)[0])
    if origin in (Union, types.UnionType):
        return tuple(inner for one in get_args(annotation) for inner in members(one))
    return (annotation,)


def sections_of(annotation: Any) -> tuple[type[BaseModel], ...]:
    return tuple(one for one in members(annotation) if isinstance(one, type) and issubclass(one, BaseModel))


def takes_bool(annotation: Any) -> bool:
    """Whether true or false may stand somewhere in a value of this type."""
    for one in members(annotation):
        if one in (bool, Any, object) or sections_of(one):  # a section checks its own values
            return True
        if any(inner is True or inner is False or takes_bool(inner) for inner in get_args(one)):
            return True
    return False


def holds_bool(value: object) -> bool:
    if isinstance(value, Mapping):
        return any(map(holds_bool, value.values()))
    return isinstance(value, bool) or (isinstance(value, list | tuple) and any(map(holds_bool, value)))


def is_secret(path: str) -> bool:
    """Whether the value is secret and must not be shown."""
    return path.endswith(SECRETS)


def keys_of(tree: type[BaseModel], prefix: str = "") -> dict[str, SettingKey]:
    """Every key of the tree by dotted path, sections included, in the order of declaration."""
    keys: dict[str, SettingKey] = {}
    for name, field in tree.model_fields.items():
        sections = sections_of(field.annotation)
        owner = next(cls for cls in tree.__mro__ if name in inspect.get_annotations(cls))
        keys[prefix + name] = SettingKey(
            field.annotation,
            field.description or "",
            sections,
            field.default,
            tuple(field.metadata),
            tuple(field.examples or ()),
            owner,
        )
        for section in sections:
            for path, key in keys_of(section, f"{prefix}{name}.").items():
                keys.setdefault(path, key)
    return keys


def env_names(keys: Mapping[str, SettingKey], prefix: str) -> dict[str, list[str]]:
    """`RONDO_TRAIN_LR` -> the paths it can mean; more than one when underscores in names collide."""
    names: dict[str, list[str]] = {}
    for path in keys:
        names.setdefault(prefix + path.upper().replace(".", "_"), []).append(path)
    return names


def nearest(path: str, keys: Mapping[str, SettingKey], flat: str | None = None) -> str | None:
    """The key most likely meant: a sibling with a like name, the same name elsewhere, or the closest path.

    `flat` is the key as an environment variable spells it, where dots and underscores look alike.
    """
    if flat is not None:
        spelled = {key.replace(".", "_"): key for key in keys if not keys[key].sections}
        best = difflib.get_close_matches(flat.replace("__", "_"), spelled, n=1, cutoff=0)
        return spelled[best[0]] if best else None
    parent, _, name = path.rpartition(".")
    siblings = {key.rpartition(".")[2]: key for key in keys if key.rpartition(".")[0] == parent}
    close = difflib.get_close_matches(name, siblings, n=1, cutoff=0.6)
    if close:
        return siblings[close[0]]
    same_name = [key for key in keys if key.rpartition(".")[2] == name]
    best = difflib.get_close_matches(path, same_name or list(keys), n=1, cutoff=0)
    return best[0] if best else None


def unknown_key(
    path: str, where: str, keys: Mapping[str, SettingKey], flat: str | None = None
) -> ConfigError:
    if path in keys:
        said = f"{path!r} in quotes is one name, which no key has ({where}). Write {path} without quotes."
        return ConfigError(said, param=path, code="unknown_key")
    above, _, name = path.rpartition(".")
    if above in keys and get_origin(keys[above].annotation) is dict:
        hint = f" {above} is written whole: --{above}='{{\"{name}\": ...}}'."
        return ConfigError(f"Unknown config key {path} ({where}).{hint}", param=path, code="unknown_key")
    right = nearest(path, keys, flat)
    hint = f" Did you mean {right}?" if right else ""
    return ConfigError(f"Unknown config key {path} ({where}).{hint}", param=path, code="unknown_key")


def not_a_section(path: str, where: str, keys: Mapping[str, SettingKey]) -> ConfigError:
    inner = next(name for name in keys if name.startswith(path + "."))
    return ConfigError(f"{path} ({where}) is a section, not a value. Set one of its keys, such as {inner}.")
