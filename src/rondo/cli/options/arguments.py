"""argparse for verbs, with errors that look like every other error."""

import argparse
import re
from collections.abc import Iterable
from typing import NoReturn

from rondo.base.errors import ConfigError
from rondo.base.units import parse_count


class VerbParser(argparse.ArgumentParser):
    """Parser without abbreviated flags; a mistake is a `ConfigError` that names the help command."""

    def __init__(self, prog: str, description: str, section: str = "", settings: Iterable[str] = ()) -> None:
        """`settings` are fields of the config section; as flags they have its name as prefix."""
        super().__init__(prog=prog, description=description, allow_abbrev=False)
        self._settings = {name: f"--{section}.{name}" for name in settings}

    def error(self, message: str) -> NoReturn:
        raise ConfigError(f"{message[:1].upper()}{message[1:]}.{self._hint(message)} See {self.prog} --help.")

    def _hint(self, message: str) -> str:
        unknown = re.match(r"unrecognized arguments: --([\w-]+)", message)
        meant = self._settings.get(unknown[1].replace("-", "_")) if unknown else None
        return f" Did you mean {meant}?" if meant else ""


def positive_count(text: str) -> int:
    """argparse type of a number of tokens, bytes or things: 4096, 4k or 4K."""
    try:
        number = parse_count(text)
    except ValueError:
        number = 0
    if not 0 < number < 2**63:
        raise argparse.ArgumentTypeError(f"{text[:80]!r} is not a whole number above 0, such as 4096 or 4k")
    return number
