"""Candidates for the last word of a command line. Nothing here imports torch.

The flags of a verb come from its own parser: its `run` is called with `--help` while the parser is captured.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import io
import json
import re
from argparse import SUPPRESS
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from rondo.base.errors import RondoError
from rondo.base.storage.home import jobs_dir, models_dir
from rondo.cli.main import VERBS
from rondo.cli.options.arguments import VerbParser, captured_parsers
from rondo.cli.options.verbs import ALIASES

if TYPE_CHECKING:
    from rondo.cli.options.scopes import SettingScope

Candidate = tuple[str, str]
FILES: Candidate = ("@files", "")
FOLDERS: Candidate = ("@folders", "")
SHORT_HASH = 12
MODEL_KEYS = frozenset({"model", "teacher", "draft_model"})


def candidates(words: Sequence[str]) -> list[Candidate]:
    """What may stand for the last of `words`, which follow `rondo`; the last one is incomplete or empty."""
    *before, current = words or [""]
    if not before:
        verbs = [(verb, text) for verb, (_, text) in VERBS.items()]
        aliases = [(alias, f"rondo {' '.join(verb)}") for alias, verb in ALIASES.items()]
        more = [("rm", "remove jobs or models"), ("--help", ""), ("--version", "")]
        return _starting(current, [*verbs, *aliases, *more])
    if before[0] == "rm":
        return _starting(current, [*_jobs(), *_models()])
    before = [*ALIASES.get(before[0], (before[0],)), *before[1:]]
    verb, *rest = before
    if verb == "help":
        return _starting(current, [(name, text) for name, (_, text) in VERBS.items()])
    if verb not in VERBS:
        return []
    module = importlib.import_module(VERBS[verb][0])
    verbs_below: Mapping[str, object] = getattr(module, "VERBS", {})
    if rest and rest[0] in verbs_below:
        return _of_parser(_parser(module.run, [rest[0]]), rest[1:], current)
    found = []
    if not rest:
        about = dict(re.findall(r"^  (\w[\w-]*)  +(.*)$", getattr(module, "USAGE", ""), re.MULTILINE))
        found = _starting(current, [(name, about.get(name, "")) for name in verbs_below])
    return [*found, *_of_parser(_parser(module.run, []), rest, current)]


def parsers(verb: str) -> Iterator[tuple[str, VerbParser]]:
    """Command and parser of a verb and of each verb below it."""
    module = importlib.import_module(VERBS[verb][0])
    for below in [[], *([name] for name in getattr(module, "VERBS", {}))]:
        if parser := _parser(module.run, below):
            yield parser.prog, parser


def _parser(run: Callable[[list[str]], int], verb: list[str]) -> VerbParser | None:
    with (
        captured_parsers() as found,
        contextlib.redirect_stdout(io.StringIO()),
        contextlib.suppress(SystemExit, RondoError),
    ):
        run([*verb, "--help"])
    return found[0] if found else None


def _of_parser(parser: VerbParser | None, before: Sequence[str], current: str) -> list[Candidate]:
    if parser is None:
        return []
    flag, equals, partial = current.partition("=")
    if current.startswith("-") and equals:
        values = _values(parser, flag)
        return [
            value if value in (FILES, FOLDERS) else (f"{flag}={value[0]}", value[1])
            for value in _starting(partial, values)
        ]
    if before and before[-1].startswith("-") and "=" not in before[-1] and _takes_value(parser, before[-1]):
        return _starting(current, _values(parser, before[-1]))
    if current.startswith("-"):
        return _starting(current, _flags(parser, current))
    return _starting(current, _argument(parser, before))


def _flags(parser: VerbParser, current: str) -> Iterator[Candidate]:
    for action in parser._actions:
        for name in action.option_strings:
            yield name, "" if action.help in (None, SUPPRESS) else str(action.help)
    if (scope := parser.scope) is None:
        return
    known = list(scope.entries()) if current not in ("-", "--") else list(scope.essentials())
    for entry in known:
        yield entry.flag.split()[0], entry.text
    if "." in current:
        for path, key in scope.settings().items():
            yield f"--{path}", key.description
    for name, flag in scope.flags.items():
        if current not in ("-", "--"):
            yield name, flag.text


def _takes_value(parser: VerbParser, flag: str) -> bool:
    action = parser._option_string_actions.get(flag)
    if action is not None:
        return action.nargs != 0 and not isinstance(action, argparse.BooleanOptionalAction)
    short = parser.scope.flags.get(flag) if parser.scope else None
    if short is not None:
        return short.alone is None
    return _path(parser.scope, flag) is not None


def _values(parser: VerbParser, flag: str) -> list[Candidate]:
    if action := parser._option_string_actions.get(flag):
        return _of_action(action)
    path = _path(parser.scope, flag)
    return _of_setting(path) if path else []


def _path(scope: SettingScope | None, flag: str) -> str | None:
    """Path of the setting that the flag sets."""
    from rondo.cli.options.tree import setting_keys

    if scope is not None and flag in scope.flags:
        return scope.flags[flag].path or None
    path = flag.removeprefix("--").replace("-", "_")
    if path in setting_keys():
        return path
    return scope.path_of(flag) if scope is not None else None


def _of_setting(path: str) -> list[Candidate]:
    from rondo.base.settings.config_values import choices
    from rondo.cli.options.tree import setting_keys

    key = setting_keys()[path]
    words = [*choices(key.annotation), *map(str, key.examples)]
    name = path.rpartition(".")[2]
    if name in MODEL_KEYS:
        return [*_models(), *_jobs(), FOLDERS]
    if name in ("data", "tasks", "task", "chat_template") or name.endswith(("_to", "_dir", "folder")):
        return [*((word, "") for word in words), FILES]
    return [(word, "") for word in words]


def _of_action(action: argparse.Action) -> list[Candidate]:
    if action.choices:
        return [(str(choice), "") for choice in action.choices]
    name = str(action.metavar or action.dest).upper()
    if name.startswith("MODEL"):
        return [*_models(), *_jobs(), FOLDERS]
    if name in ("JOB", "HASH", "RUN"):
        return _jobs()
    if name == "KEY":
        from rondo.cli.options.tree import setting_keys

        return [(path, key.description) for path, key in setting_keys().items()]
    if re.search("FILE|FOLDER|DIR|PATH|SOURCE|TOML|TASK", name):
        return [FILES]
    return []


def _argument(parser: VerbParser, before: Sequence[str]) -> list[Candidate]:
    """Values of the positional argument that is next."""
    given, skip = 0, False
    for token in before:
        if skip or token.startswith("-"):
            skip = not skip and token.startswith("-") and "=" not in token and _takes_value(parser, token)
        else:
            given += 1
    actions = [action for action in parser._actions if not action.option_strings]
    if not actions:
        return []
    at = actions[min(given, len(actions) - 1)]
    return _of_action(at) if given < len(actions) or at.nargs in ("+", "*") else []


def _models() -> list[Candidate]:
    with contextlib.suppress(OSError):
        folders = [path for path in models_dir().iterdir() if path.is_dir() and not path.name.startswith(".")]
        return [(path.name, "model") for path in sorted(folders)]
    return []


def _jobs() -> list[Candidate]:
    """Name, if the job has one, and hash of each job, the last started first."""
    found: list[tuple[float, Candidate]] = []
    with contextlib.suppress(OSError):
        for file in jobs_dir().glob("*/spec.json"):
            origin, kind = _read(file.with_name("origin.json")), _read(file).get("kind", "")
            text = f"{kind} {origin.get('model', '')}".strip()
            started = float(str(origin.get("started", 0)))
            found.append((started, (file.parent.name[:SHORT_HASH], text)))
            if origin.get("name"):
                found.append((started, (str(origin["name"]), text)))
    return [candidate for _, candidate in sorted(found, reverse=True)]


def _read(file: object) -> dict[str, object]:
    with contextlib.suppress(OSError, ValueError), open(str(file), encoding="utf-8") as opened:
        found = json.load(opened)
        return found if isinstance(found, dict) else {}
    return {}


def _starting(current: str, found: Iterable[Candidate]) -> list[Candidate]:
    """Candidates that begin with `current`, each once; the description is one line."""
    kept: dict[str, str] = {}
    for value, text in found:
        if value.startswith((current, "@")):
            kept.setdefault(value, " ".join(text.split())[:80])
    return list(kept.items())
