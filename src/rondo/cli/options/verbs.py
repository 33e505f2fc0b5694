"""Verbs of a command, such as `list` of `rondo job`, and their selection."""

from collections.abc import Callable, Iterable, Mapping

from rondo.base.errors import ConfigError

Verb = Callable[[list[str]], int]
HELP = ("-h", "--help")


def run_verb(command: str, verbs: Mapping[str, Verb], usage: str, argv: list[str]) -> int:
    if not argv or argv[0] in HELP:
        print(usage)
        return 0
    if argv[0] not in verbs:
        raise unknown_verb(command, verbs, argv[0])
    return verbs[argv[0]](argv[1:])


def unknown_verb(command: str, verbs: Iterable[str], given: str) -> ConfigError:
    import difflib  # here, since most commands need none of it

    close = difflib.get_close_matches(given, verbs, n=1)
    hint = f" Did you mean `{command} {close[0]}`?" if close else ""
    return ConfigError(f"There is no verb {given!r}.{hint} See {command} --help.")
