"""All settings as text: search, `rondo config --explain` and the reference page."""

from __future__ import annotations

import difflib
import functools
import textwrap
from collections.abc import Iterable, Iterator, Mapping

from rondo.base.errors import ConfigError
from rondo.base.settings.config_keys import SettingKey
from rondo.base.settings.config_values import allowed, shown
from rondo.cli.options.help import columns, matching, sections, setting_entry
from rondo.cli.options.scopes import EVALUATE, RL, SERVE, SettingScope, section_title, train_scope
from rondo.cli.options.tree import setting_keys

PAGE = """# Settings

This page is generated from the source by `make settings`. A setting is a flag (`--train.lr=1e-4`), a variable
(`RONDO_TRAIN_LR`) or a key of a TOML file; a later source wins: default, file, environment, flag.
`rondo config --explain` prints the same with the effective values, `rondo --help=WORD` searches.

`rondo train`, `rondo rl` and `rondo evaluate` take the settings of their section without its name: `--lr` is
`--train.lr`, `--adapter.r` is `--train.adapter.r`. Numbers of tokens and bytes may have the suffixes k, m, g and t,
which are powers of 1024 in either case: `4m` and `4M` are 4,194,304.
"""

VERBS: dict[str, tuple[str, SettingScope, str]] = {
    "`rondo train`": ("train", train_scope(), "Recipes are `pretrain`, `sft`, `preference` and `reward`."),
    "`rondo rl`": ("rl", RL, ""),
    "`rondo evaluate`": ("", EVALUATE, "`rondo evaluate` uses these settings of `train`:"),
    "`rondo serve`": ("engine", SERVE, "`rondo up` and `rondo bench` take the same settings."),
}
"""Heading of the page: section (empty: the scope's), scope and a note."""


def search(topic: str) -> str:
    """Settings of every verb that match, under the headings of their sections."""
    entries = [
        setting_entry(section_title(path, key), f"--{path}", path, key)
        for path, key in leaves(setting_keys()).items()
    ]
    found = entries if topic == "all" else matching(topic, entries)
    if not found:
        raise ConfigError(f"No setting matches {topic!r}. List all: rondo --help=all")
    return sections(found)


def leaves(keys: Mapping[str, SettingKey]) -> dict[str, SettingKey]:
    return {path: key for path, key in keys.items() if not key.sections}


def explain(path: str, value: str, source: str) -> str:
    """Everything about one setting: value, source, description, allowed values, spellings."""
    key = setting_keys()[path]
    facts = {
        "value": f"{value}  ({source})",
        "default": shown(key.default) or "empty",
        "allowed": allowed(key),
        "variable": f"RONDO_{path.upper().replace('.', '_')}",
        "flags": ", ".join(spellings()[path]),
    }
    lines = [path, *_indented(key.description.rstrip(".") + ".")]
    for name, text in facts.items():
        first, *rest = _indented(text, 12)
        lines += [f"  {name:<10}{first.strip()}", *rest]
    return "\n".join(lines)


@functools.cache
def spellings() -> Mapping[str, list[str]]:
    """Flags that set each key: by its path, and the short forms of verbs."""
    found = {path: [f"--{path}"] for path in leaves(setting_keys())}
    for heading, (_, scope, _) in VERBS.items():
        verb = heading.strip("`")
        for path in scope.settings():
            if (short := scope.spelled(path)) != f"--{path}":
                found[path].append(f"{short} ({verb})")
        for name, flag in scope.flags.items():
            if flag.path and (text := f"{name} ({verb})") not in found[flag.path]:
                found[flag.path].append(text)
    return found


def near(wanted: str, known: Iterable[str]) -> ConfigError:
    """Error for an unknown section or key, with the nearest ones."""
    paths = list(known)
    parents = {path.rpartition(".")[0] for path in paths} - {""}
    last = [path for path in paths if path.rpartition(".")[2] == wanted.rpartition(".")[2]]
    close = difflib.get_close_matches(wanted, [*sorted(parents), *paths], n=3)
    close = sorted(last, key=lambda path: path.count("."))[:3] or close
    hint = f" Did you mean {_either([repr(one) for one in close])}?" if close else ""
    topic = wanted.rpartition(".")[2]
    return ConfigError(f"There is no section or key {wanted!r}.{hint} Search: rondo --help={topic}")


def page() -> str:
    """The reference page in Markdown: all settings by verb and section."""
    parts = [PAGE]
    seen: set[str] = set()
    for heading, (_, scope, note) in VERBS.items():
        parts.append(f"## {heading}\n" + (f"\n{note}\n" if note else ""))
        if scope is EVALUATE:
            parts.append(
                ", ".join(f"`{path}`" for path in scope.settings() if not path.startswith("log.")) + ".\n"
            )
            continue
        if short := _short_forms(scope):
            parts.append(short)
        keys = {
            path: key for path, key in _of(scope).items() if path not in seen and not path.startswith("log.")
        }
        seen |= keys.keys()
        parts += _tables(keys)
    rest = {path: key for path, key in leaves(setting_keys()).items() if path not in seen}
    return "\n".join([*parts, "## All verbs\n", *_tables(rest)]).rstrip() + "\n"


def _of(scope: SettingScope) -> dict[str, SettingKey]:
    """The scope's keys, with those that the verb has as arguments of its own."""
    keys = leaves(setting_keys())
    return {path: key for path, key in keys.items() if path.partition(".")[0] in scope.sections}


def _short_forms(scope: SettingScope) -> str:
    rows = [(f"`{name}`", f"`{flag.path}`" if flag.path else flag.text) for name, flag in scope.flags.items()]
    table = "\n".join(f"| {name} | {_cell(meaning)} |" for name, meaning in rows)
    return f"| short form | setting |\n|---|---|\n{table}\n" if rows else ""


def _tables(keys: Mapping[str, SettingKey]) -> Iterator[str]:
    groups: dict[str, list[str]] = {}
    for path, key in keys.items():
        cells = map(_cell, (shown(key.default), allowed(key), key.description.rstrip(".")))
        groups.setdefault(section_title(path, key), []).append(f"| `{path}` | {' | '.join(cells)} |")
    for title, rows in groups.items():
        section, _, about = title.partition(": ")
        name = about[:1].upper() + about[1:] if about else section
        yield "\n".join(
            [f"### {name}\n", "| setting | default | allowed | meaning |", "|---|---|---|---|", *rows, ""]
        )


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("*", "\\*").replace("<", "&lt;")


def _either(words: list[str]) -> str:
    return " or ".join([", ".join(words[:-1]), words[-1]]) if len(words) > 1 else words[0]


def _indented(text: str, indent: int = 2) -> list[str]:
    margin = " " * indent
    return textwrap.wrap(
        text,
        columns(),
        initial_indent=margin,
        subsequent_indent=margin,
        break_on_hyphens=False,
        break_long_words=False,
    ) or [margin]
