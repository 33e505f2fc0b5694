"""argparse for verbs, with errors that look like every other error and help pages of settings."""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn

from rondo.base.errors import ConfigError
from rondo.base.units import parse_count

if TYPE_CHECKING:
    from rondo.cli.options.scopes import SettingScope


class VerbParser(argparse.ArgumentParser):
    """Parser without abbreviated flags; a mistake is a `ConfigError` that names the help command."""

    captured: ClassVar[list[VerbParser] | None] = None
    """Parsers that were to print their help, while `captured_parsers` is active."""

    def __init__(
        self,
        prog: str,
        description: str,
        scope: SettingScope | None = None,
        essential: Sequence[str] | None = None,
    ) -> None:
        """`scope` are the verb's settings. `essential` are the options on the plain help page, by default all."""
        super().__init__(prog=prog, description=description, allow_abbrev=False, add_help=False)
        self.scope = scope
        self.essential = essential
        self.add_argument("-h", "--help", nargs="?", const="", action=_HelpAction)

    def print_help(self, file: Any = None) -> None:
        self.show_help()

    def show_help(self, topic: str = "") -> None:
        """Prints the plain page, or the matches of a topic."""
        if VerbParser.captured is not None:
            VerbParser.captured.append(self)
            return
        from rondo.cli.options.help import help_page

        print(help_page(self, topic))

    def options(self) -> list[str]:
        """The verb's own flags."""
        return [name for action in self._actions for name in action.option_strings]

    def error(self, message: str) -> NoReturn:
        raise ConfigError(f"{message[:1].upper()}{message[1:]}.{self._hint(message)} See {self.prog} --help.")

    def _hint(self, message: str) -> str:
        unknown = re.match(r"unrecognized arguments: (--?[\w-]+)", message)
        meant = self.nearest(unknown[1]) if unknown else None
        return f" Did you mean {meant}?" if meant else ""

    def nearest(self, flag: str) -> str | None:
        """The flag that was most likely meant."""
        import difflib

        if self.scope is not None:
            return self.scope.nearest(flag, self.options())
        close = difflib.get_close_matches(flag, self.options(), n=1)
        return close[0] if close else None


class _HelpAction(argparse.Action):
    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: str | Sequence[Any] | None,
        option_string: str | None = None,
    ) -> None:
        assert isinstance(parser, VerbParser)
        parser.show_help(str(values or ""))
        parser.exit()


@contextmanager
def captured_parsers() -> Iterator[list[VerbParser]]:
    """Collects the parsers of verbs that are called with `--help`, in place of printing their pages."""
    VerbParser.captured = []
    try:
        yield VerbParser.captured
    finally:
        VerbParser.captured = None


def positive_count(text: str) -> int:
    """argparse type of a number of tokens, bytes or things: 4096, 4k or 4K."""
    try:
        number = parse_count(text)
    except ValueError:
        number = 0
    if not 0 < number < 2**63:
        raise argparse.ArgumentTypeError(f"{text[:80]!r} is not a whole number above 0, such as 4096 or 4k")
    return number
