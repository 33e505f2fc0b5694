"""`rondo config`: all effective settings and the source of each value."""

import difflib
import json
from dataclasses import replace
from pathlib import Path

from rondo.base.errors import ConfigError
from rondo.base.settings.config import SettingSource
from rondo.base.settings.config_keys import is_secret
from rondo.base.storage.home import models_dir
from rondo.cli.options.arguments import VerbParser
from rondo.cli.options.tree import CommandLine, read_command_line

EPILOG = """Settings: --section.key=value, RONDO_SECTION_KEY=value, or a TOML file with [section] tables.
A later source wins: default, file, environment, flag."""


def run(argv: list[str]) -> int:
    parser = VerbParser("rondo config", f"Show every setting and where its value comes from. {EPILOG}")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--config", metavar="FILE", help="a TOML file of settings")
    parser.add_argument("section", nargs="*", help="only these sections or keys, such as train or train.lr")
    if {"-h", "--help"} & set(argv):
        parser.print_help()
        return 0
    line = with_planner(read_command_line(argv))
    arguments = parser.parse_args(line.rest)
    rows = _rows(line, arguments.section)
    if arguments.json:
        print(
            json.dumps({path: {"value": value, "source": source} for path, value, source in rows}, indent=2)
        )
    else:
        print(_table(rows))
    return 0


def with_planner(line: CommandLine) -> CommandLine:
    """The settings as `rondo train sft` fills them, if the model is a folder or a stored model."""
    train = line.config.tree.train
    folder = next(
        (at for at in (models_dir() / train.model, Path(train.model)) if (at / "config.json").is_file()), None
    )
    if not train.model or folder is None:
        return line
    from rondo.train.recipes.defaults import planned

    chosen = planned("sft", train, folder)
    made = {f"train.{choice.setting}": SettingSource("default", "planner") for choice in chosen.choices}
    tree = line.config.tree.model_copy(update={"train": chosen.config})
    return replace(line, config=replace(line.config, tree=tree, sources=line.config.sources | made))


def _rows(line: CommandLine, wanted: list[str]) -> list[tuple[str, object, str]]:
    """(path, value as JSON has it, source); secrets come out masked."""
    known = [path for path, _, _ in line.config.rows()]
    for prefix in wanted:
        if prefix not in known and not any(path.startswith(prefix + ".") for path in known):
            raise _unknown(prefix, known)
    dumped = line.config.tree.model_dump(mode="json")
    rows = []
    for path, _, source in line.config.rows():
        value: object = dumped
        for name in path.split("."):
            value = value[name] if isinstance(value, dict) else value
        if not wanted or any(path == prefix or path.startswith(prefix + ".") for prefix in wanted):
            secret = isinstance(value, str | list) and value and is_secret(path)
            rows.append((path, "********" if secret else value, str(source)))
    return rows


def _unknown(wanted: str, known: list[str]) -> ConfigError:
    sections = {path.rpartition(".")[0] for path in known} - {""}
    close = difflib.get_close_matches(wanted, [*sorted(sections), *known], n=1, cutoff=0)
    return ConfigError(f"There is no section or key {wanted!r}. Did you mean {close[0]!r}?")


def _table(rows: list[tuple[str, object, str]]) -> str:
    shown = [(path, json.dumps(value, ensure_ascii=False), source) for path, value, source in rows]
    widths = [max((len(row[column]) for row in shown), default=0) for column in range(2)]
    return "\n".join(f"{path:<{widths[0]}}  {value:<{widths[1]}}  {source}" for path, value, source in shown)
