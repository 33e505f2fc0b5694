"""Error messages for unknown keys and invalid values."""

from collections.abc import Mapping
from typing import get_origin

from rondo.base.errors import ConfigError
from rondo.base.settings.config_keys import SettingKey, nearest


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
