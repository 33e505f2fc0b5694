"""`rondo evaluate MODEL`: scores of a model on held-out records and on tasks."""

from __future__ import annotations

import json
from collections.abc import Mapping

from rondo.cli.options.arguments import VerbParser
from rondo.cli.options.tree import read_command_line
from rondo.cli.view.fetch import fetch_data, fetch_model


def run(argv: list[str]) -> int:
    parser = VerbParser("rondo evaluate", "Measure a model on held-out records and on tasks.")
    parser.add_argument(
        "model",
        metavar="MODEL",
        help="a name from `rondo model list`, a folder, a job's hash, or ORG/NAME[@REVISION]",
    )
    parser.add_argument(
        "--data",
        action="append",
        metavar="SOURCE",
        help="records: the perplexity of their text or of the assistant's; of a reward model its accuracy on pairs",
    )
    parser.add_argument(
        "--tasks", action="append", metavar="FILE", help="JSON lines of multiple-choice and generation tasks"
    )
    parser.add_argument("--adapter", metavar="FOLDER", help="an adapter of the model, to be measured with it")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.epilog = "Settings are flags too: --train.evaluate.max_tokens=128; `rondo config` lists them."
    if any(flag in argv for flag in ("-h", "--help")):
        parser.print_help()
        return 0
    command = read_command_line(argv)
    given = parser.parse_args(command.rest)
    config = command.config.tree.train
    asked = {name: getattr(given, name) for name in ("data", "tasks") if getattr(given, name)}
    evaluate = config.evaluate.model_copy(update=asked)

    fetch_model(given.model)
    fetch_data(evaluate.data or [])

    from rondo.train.evaluation.evaluate import PREFIX
    from rondo.train.evaluation.evaluate_model import evaluate_model

    found = evaluate_model(
        config.model_copy(update={"model": given.model, "evaluate": evaluate}), given.adapter
    )
    found = {name.removeprefix(PREFIX): value for name, value in found.items()}
    print(json.dumps(found) if given.json else _sheet(found))
    return 0


def _sheet(found: Mapping[str, float]) -> str:
    width = max(map(len, found))
    return "\n".join(f"{name:<{width}}  {value + 0.0:.6g}" for name, value in found.items())
