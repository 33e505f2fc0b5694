"""`rondo config`: all effective settings and the source of each value."""

import json
from dataclasses import replace
from pathlib import Path

from rondo.base.settings.config import SettingSource
from rondo.base.settings.config_keys import is_secret
from rondo.base.settings.config_values import allowed, shown
from rondo.base.storage.home import models_dir
from rondo.cli.options.arguments import VerbParser
from rondo.cli.options.help import help_topic
from rondo.cli.options.reference import explain, near, search
from rondo.cli.options.tree import CommandLine, read_command_line, setting_keys
from rondo.cli.view.table import aligned
from rondo.jobs.folders import is_model, model_in

EPILOG = """Settings: --section.key=value, RONDO_SECTION_KEY=value, or a TOML file with [section] tables.
A later source wins: default, file, environment, flag."""


def run(argv: list[str]) -> int:
    parser = VerbParser("rondo config", f"Show every setting and the source of its value. {EPILOG}")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument(
        "--explain", action="store_true", help="also print description, allowed values and short forms"
    )
    parser.add_argument("--config", metavar="FILE", help="a TOML file of settings")
    parser.add_argument(
        "section", metavar="KEY", nargs="*", help="only these sections or keys, such as train or train.lr"
    )
    topic = help_topic(argv)
    if topic is not None:
        if topic in ("", "all"):
            parser.print_help()
        else:
            print(search(topic))
        return 0
    line = with_planner(read_command_line(argv))
    arguments = parser.parse_args(line.rest)
    rows = _rows(line, arguments.section)
    if arguments.json:
        print(json.dumps(_object(rows, arguments.explain), indent=2))
    elif arguments.explain:
        print("\n\n".join(explain(path, shown(value), source) for path, value, source in rows))
    else:
        print(_table(rows))
    return 0


def _object(rows: list[tuple[str, object, str]], explained: bool) -> dict[str, dict[str, object]]:
    found: dict[str, dict[str, object]] = {
        path: {"value": value, "source": source} for path, value, source in rows
    }
    if explained:
        keys = setting_keys()
        for path, facts in found.items():
            key = keys[path]
            facts |= {"description": key.description, "default": shown(key.default), "allowed": allowed(key)}
    return found


def with_planner(line: CommandLine) -> CommandLine:
    """The settings as `rondo train sft` fills them, if the model is a folder, a GGUF file or a stored model."""
    train = line.config.tree.train
    places = (models_dir() / train.model, Path(train.model)) if train.model else ()
    folder = next((model_in(place) for place in places if is_model(place)), None)
    if folder is None:
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
            raise near(prefix, known)
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


def _table(rows: list[tuple[str, object, str]]) -> str:
    shown = [(path, json.dumps(value, ensure_ascii=False), source) for path, value, source in rows]
    return "\n".join(aligned(shown))
