"""User-defined Python objects: `module:attribute`, or `path/to/file.py:attribute`."""

from __future__ import annotations

import difflib
import hashlib
import importlib
import importlib.util
import sys
import traceback
from pathlib import Path
from types import ModuleType

from rondo.base.errors import ConfigError, NotFound


def is_entry(text: str) -> bool:
    """Whether the text has the form of an entry; `load_entry` checks its existence."""
    module, colon, name = text.rpartition(":")
    return bool(colon and module) and name.isidentifier()


def load_entry(text: str, param: str) -> object:
    """The object itself. A file is a module of its own, imported once. `param` is the setting that named it."""
    if not is_entry(text):
        raise ConfigError(
            f"{text!r} names nothing in Python: write module:attribute or path/to/file.py:attribute.",
            param=param,
        )
    place, _, name = text.rpartition(":")
    try:
        module = _of_file(Path(place), param) if place.endswith(".py") else importlib.import_module(place)
    except (ConfigError, NotFound):
        raise
    except ModuleNotFoundError as error:
        raise NotFound(
            f"{text}: {error}. Is it installed, or the folder in PYTHONPATH?", param=param
        ) from error
    except Exception as error:  # whatever a user's file does when it is imported
        raise ConfigError(
            f"{place} cannot be imported: {type(error).__name__}: {error}{_line(error)}", param=param
        ) from error
    if not hasattr(module, name):
        near = difflib.get_close_matches(
            name, [each for each in vars(module) if not each.startswith("_")], n=1
        )
        hint = f" Did you mean {near[0]}?" if near else ""
        raise NotFound(f"{place} has no {name!r}.{hint}", param=param)
    return getattr(module, name)


def source_hash(text: str) -> str | None:
    """Hash of the file with the entry, for the names of dependent results; None for an object without source."""
    place = text.rpartition(":")[0]
    if place.endswith(".py"):
        origin: str | None = place
    else:
        module = sys.modules.get(place)
        origin = getattr(module, "__file__", None)  # what is built in has none
    return hashlib.sha256(Path(origin).read_bytes()).hexdigest() if origin else None


def _line(error: Exception) -> str:
    """Line of the error in the user's file, which a syntax error already has in its text."""
    last = None
    for frame, number in traceback.walk_tb(error.__traceback__):
        if frame.f_code.co_name == "<module>":
            last = f" ({frame.f_code.co_filename}, line {number})"
    return "" if last is None or isinstance(error, SyntaxError) else last


def _of_file(file: Path, param: str) -> ModuleType:
    if not file.is_file():
        raise NotFound(f"There is no file {file}.", param=param)
    file = file.resolve()
    name = f"{file.stem}_{hashlib.sha256(str(file).encode()).hexdigest()[:8]}"
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # before it runs: dataclasses look themselves up there
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module
