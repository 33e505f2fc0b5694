"""Help pages of verbs: grouped, with defaults, searchable, and readable at 80 columns.

A plain page has the verb's own options and its essential settings; `--help=all` has every setting, `--help=WORD` those
whose name or description matches.
"""

from __future__ import annotations

import argparse
import re
import shutil
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

from rondo.base.errors import ConfigError
from rondo.cli.options.examples import EXAMPLES

if TYPE_CHECKING:
    from rondo.base.settings.config_keys import SettingKey
    from rondo.cli.options.arguments import VerbParser

WIDEST, NARROWEST = 100, 60
LONGEST_CHOICES = 64
"""Characters of a list of choices that a help page prints; `rondo config --explain` prints every list."""


class HelpEntry(NamedTuple):
    group: str
    flag: str
    text: str
    key: str = ""
    """Path of the setting, if the flag sets one."""


def help_topic(argv: Sequence[str]) -> str | None:
    """The word of `--help=WORD`, empty for plain help; None if the command line does not request help."""
    for token in argv[: argv.index("--")] if "--" in argv else argv:
        if token in ("-h", "--help"):
            return ""
        if token.startswith("--help="):
            return token.removeprefix("--help=")
    return None


def help_page(parser: VerbParser, topic: str = "") -> str:
    own, scope = list(_own(parser)), parser.scope
    if topic == "all":
        parts = [*own, *(scope.entries() if scope else ())]
    elif topic:
        return _found(parser, topic, [*own, *(scope.entries() if scope else ())])
    else:
        shown = [entry for entry in own if parser.essential is None or entry.flag in _listed(parser, entry)]
        parts = [*shown, *(scope.essentials() if scope else ())]
    about = _wrapped(parser.description or "")
    return "\n\n".join(
        part
        for part in (
            f"usage: {_usage(parser)}",
            about,
            sections(parts, short=not topic),
            _footer(parser, topic),
        )
        if part
    )


def sections(entries: Iterable[HelpEntry], short: bool = False) -> str:
    """Entries under the headings of their groups, in the order in which groups first appear; `short`: a line each."""
    groups: dict[str, list[HelpEntry]] = {}
    for entry in entries:
        groups.setdefault(entry.group, []).append(entry)
    longest = max((len(entry.flag) for group in groups.values() for entry in group), default=0)
    left = min(longest + 4, 28)
    return "\n\n".join(
        "\n".join(
            [f"{name}:" if name else "", *(line for entry in group for line in _lines(entry, left, short))]
        ).lstrip("\n")
        for name, group in groups.items()
    )


def fitted_usage(usage: str) -> str:
    """The text with lines that are too long wrapped; the second line of a verb begins below its description."""
    lines: list[str] = []
    for line in usage.splitlines():
        verb = re.match(r" +\S+ +", line)
        indent = " " * (len(verb[0]) if verb else 0)
        lines += textwrap.wrap(line, columns(), subsequent_indent=indent, break_on_hyphens=False) or [""]
    return "\n".join(lines)


def matching(topic: str, entries: Iterable[HelpEntry]) -> list[HelpEntry]:
    """Entries whose name, else whose text, has the words of the topic; names first."""
    words = [word for word in re.split(r"[\s,]+", topic.lower().strip("-")) if word]
    named, described = [], []
    for entry in entries:
        name = f"{entry.flag.split()[0]} {entry.key}".lower().replace("-", "_")
        if all(re.search(rf"(?<![a-z0-9]){re.escape(word.replace('-', '_'))}", name) for word in words):
            named.append(entry)
        elif all(re.search(rf"\b{re.escape(word)}", f"{name} {entry.text.lower()}") for word in words):
            described.append(entry)
    return [*named, *described]


def setting_entry(group: str, flag: str, path: str, key: SettingKey) -> HelpEntry:
    from rondo.base.settings.config_values import choices, shown

    words = choices(key.annotation)
    listed = ", ".join(words) if words not in (["none"], ["true", "false"]) else ""
    about = key.description.rstrip(".")
    if 0 < len(listed) <= LONGEST_CHOICES:
        about += f" [{listed}]"
    default = shown(key.default)
    note = f" ({default})" if default not in ("", "none") else ""
    return HelpEntry(group, f"{flag} {placeholder(key)}".rstrip(), about + note, path)


def placeholder(key: SettingKey) -> str:
    from rondo.base.settings.config_keys import members
    from rondo.base.settings.config_values import allowed, choices

    kinds = members(key.annotation)
    if bool in kinds:
        return ""
    for kind, word in ((int, "N"), (float, "X"), (str, "TEXT")):
        if kind in kinds:
            return word
    if [word for word in choices(key.annotation) if word != "none"]:
        return "NAME"
    return "JSON" if allowed(key).startswith("JSON") else "LIST"


def _own(parser: VerbParser) -> Iterator[HelpEntry]:
    for group in parser._action_groups:
        title = {"positional arguments": "arguments", "options": "options"}.get(
            group.title or "", group.title or ""
        )
        for action in group._group_actions:
            if action.dest != "help" and action.help != argparse.SUPPRESS:
                yield HelpEntry(title, _flag(action), _text(action))


def _listed(parser: VerbParser, entry: HelpEntry) -> list[str]:
    """The entry's flag if the plain page has it: arguments always, options if they are essential."""
    name = entry.flag.split(" ")[0].rstrip(",")
    essential = parser.essential or ()
    return [entry.flag] if not name.startswith("-") or name in essential else []


def _flag(action: argparse.Action) -> str:
    metavar = action.metavar or _few_choices(action) or action.dest.rpartition("_")[2].upper()
    name = metavar if isinstance(metavar, str) else " ".join(metavar)
    if not action.option_strings:
        return name
    spelled = ", ".join(action.option_strings)
    alone = action.nargs == 0 or isinstance(action, argparse.BooleanOptionalAction)
    return spelled if alone else f"{spelled} {name}"


def _few_choices(action: argparse.Action) -> str:
    words = "|".join(map(str, action.choices or ()))
    return words if len(words) <= 16 else ""


def _text(action: argparse.Action) -> str:
    text = (action.help or "") % {**vars(action), "prog": ""}
    if (
        action.choices
        and not _few_choices(action)
        and not all(str(choice) in text for choice in action.choices)
    ):
        text += f" [{', '.join(map(str, action.choices))}]"
    value = action.default
    plain = isinstance(value, str | int | float) and not isinstance(value, bool) and value != ""
    if plain and action.option_strings and "default" not in text and not text.endswith(")"):
        text += f" ({value})"
    return text.strip()


def _lines(entry: HelpEntry, left: int, short: bool) -> list[str]:
    width = columns() - left - 1
    texts = textwrap.wrap(entry.text, width, break_long_words=False, break_on_hyphens=False) or [""]
    if short and entry.key and len(texts) > 1:
        texts = [shortened(entry.text, width)]
    head = f"  {entry.flag}"
    if len(head) > left - 2:
        return [head, *(" " * left + text for text in texts)]
    return [f"{head:<{left}}{texts[0]}".rstrip(), *(" " * left + text for text in texts[1:])]


def shortened(text: str, width: int) -> str:
    """The first clauses that fit, and the default."""
    note = found[0] if (found := re.search(r" \([^()]*\)$", text)) else ""
    cut = textwrap.shorten(text.removesuffix(note), width - len(note), placeholder=" ...")
    clause = re.match(r".{14,}?(?=; |, |: | \[| \()", cut)
    return (clause[0] if clause else cut) + note


def _found(parser: VerbParser, topic: str, entries: Sequence[HelpEntry]) -> str:
    found = matching(topic, entries)
    if not found:
        raise ConfigError(
            f"{parser.prog} has no option or setting for {topic!r}. List all: {parser.prog} --help=all"
        )
    return sections(entry._replace(group=f"{parser.prog}, matches of {topic!r}") for entry in found)


def _usage(parser: VerbParser) -> str:
    if parser.usage:
        return parser.usage
    words = [parser.prog]
    for action in parser._actions:
        if action.dest == "help" or (action.option_strings and not action.required):
            continue
        name = _flag(action)
        optional = not action.option_strings and action.nargs in ("?", "*")
        words.append(f"[{name}]" if optional else f"{name} ..." if action.nargs == "+" else name)
    return " ".join([*words, "[options]" if parser.scope is None else "[--SETTING=VALUE ...]"])


def _footer(parser: VerbParser, topic: str) -> str:
    lines = [_wrapped(parser.epilog)] if parser.epilog else []
    if example := EXAMPLES.get(parser.prog):
        lines.append(f"example:  {example}")
    if parser.scope is not None and topic != "all":
        count = sum(1 for _ in parser.scope.entries())
        lines.append(f"(default)  --help=all: all {count} settings in full  --help=lr: search")
    elif parser.essential is not None and topic != "all":
        lines.append("(default)  --help=all: all options in full  --help=WORD: search")
    return "\n".join(lines)


def _wrapped(text: str) -> str:
    return "\n".join(textwrap.wrap(text, columns(), break_on_hyphens=False))


def columns() -> int:
    return max(NARROWEST, min(WIDEST, shutil.get_terminal_size().columns))
