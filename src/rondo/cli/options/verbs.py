"""Verbs of a command, such as `list` of `rondo job`, and their selection."""

from collections.abc import Callable, Iterable, Mapping

from rondo.base.errors import ConfigError

Verb = Callable[[list[str]], int]
HELP = ("-h", "--help")

ALIASES = {"ls": ("model", "list")}
"""Short names of verbs, as other tools have them; `rondo rm` removes a job or a model."""

GROUPS = {
    "first steps": ("up", "demo", "run", "chat", "pull"),
    "serve": (
        *("serve", "gateway", "generate", "queue", "batch", "file", "worker"),
        *("ps", "logs", "down", "keys", "bench", "db"),
    ),
    "train": ("train", "rl", "evaluate", "data", "plan", "weights"),
    "manage": ("model", "registry", "job", "config", "doctor", "completion"),
}
"""Headings of `rondo --help`."""


def run_verb(command: str, verbs: Mapping[str, Verb], usage: str, argv: list[str]) -> int:
    if not argv or argv[0] in HELP:
        from rondo.cli.options.help import fitted_usage

        print(fitted_usage(usage))
        return 0
    if argv[0].startswith("--help="):
        print(_matching(command, usage, argv[0].removeprefix("--help=")))
        return 0
    if argv[0] not in verbs:
        raise unknown_verb(command, verbs, argv[0])
    return verbs[argv[0]](argv[1:])


def _matching(command: str, usage: str, topic: str) -> str:
    found = [line for line in usage.splitlines()[1:] if topic == "all" or topic.lower() in line.lower()]
    if not found:
        raise ConfigError(f"{command} has no verb for {topic!r}. See {command} --help.")
    return "\n".join(found)


def unknown_verb(command: str, verbs: Iterable[str], given: str) -> ConfigError:
    import difflib  # here, since most commands need none of it

    close = difflib.get_close_matches(given, verbs, n=1)
    hint = f" Did you mean `{command} {close[0]}`?" if close else ""
    return ConfigError(f"There is no verb {given!r}.{hint} See {command} --help.")
