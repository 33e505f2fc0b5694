"""`rondo evaluate MODEL`: scores of a model on held-out records and on tasks."""

from __future__ import annotations

import json
from collections.abc import Mapping

from rondo.base.errors import ConfigError
from rondo.base.telemetry.activity import activity
from rondo.cli.options.arguments import VerbParser
from rondo.cli.options.scopes import EVALUATE
from rondo.cli.options.short import read_settings
from rondo.cli.subcommands.job_submit import add_submit, submitted
from rondo.cli.view.fetch import fetch_adapters, fetch_data, fetch_model
from rondo.jobs.attempt import report


def run(argv: list[str]) -> int:
    parser = VerbParser("rondo evaluate", "Measure a model on held-out records and on tasks.", EVALUATE)
    parser.add_argument(
        "model",
        metavar="MODEL",
        help="a name from `rondo model list`, a folder, a job's name or hash, or ORG/NAME[@REVISION]",
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
    parser.add_argument(
        "--adapter",
        metavar="ADAPTER",
        help="an adapter to measure the model with: a folder, a job, or ORG/NAME of the Hub",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    add_submit(parser)
    command = read_settings(parser, argv)
    if command is None:
        return 0
    given = parser.parse_args(command.rest)
    if given.submit and given.adapter:
        raise ConfigError("--adapter with --submit: name the adapter as MODEL.", param="--adapter")
    if (code := submitted("evaluate", "train", command, given)) is not None:
        return code
    config = command.config.tree.train
    asked = {name: getattr(given, name) for name in ("data", "tasks") if getattr(given, name)}
    evaluate = config.evaluate.model_copy(update=asked)

    fetch_model(given.model)
    fetch_data(evaluate.data or [])
    fetch_adapters({"--adapter": given.adapter} if given.adapter else {})

    with activity("importing torch"):
        from rondo.train.evaluation.evaluate import PREFIX
        from rondo.train.evaluation.evaluate_model import evaluate_model

    with activity(f"evaluating {given.model}"):
        found = evaluate_model(
            config.model_copy(update={"model": given.model, "evaluate": evaluate}), given.adapter
        )
    found = {name.removeprefix(PREFIX): value for name, value in found.items()}
    report(result=found)
    print(json.dumps(found) if given.json else _sheet(found))
    return 0


def _sheet(found: Mapping[str, float]) -> str:
    width = max(map(len, found))
    return "\n".join(f"{name:<{width}}  {value + 0.0:.6g}" for name, value in found.items())
