"""`rondo train pretrain|sft`: a training job, from wherever it stopped."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from rondo.base.errors import ConfigError
from rondo.cli.arguments import Parser
from rondo.cli.tree import read_command_line

if TYPE_CHECKING:
    from rondo.train.data import Kind

USAGE = """usage: rondo train pretrain|sft --model MODEL --data SOURCE [--train.KEY=VALUE ...]

  pretrain  every token of every document
  sft       what the assistant says, through the model's chat template

Data are JSON lines: {"text": ...}, {"messages": [...]} or {"prompt": ..., "completion": ...}; or plain text, or
Parquet, or what `rondo data prepare` wrote.
The same command again resumes the job from its last checkpoint. `rondo config` lists the settings."""


def run(argv: list[str]) -> int:
    if not argv or argv[0] in ("-h", "--help"):
        print(USAGE)
        return 0
    if argv[0] not in ("pretrain", "sft"):
        raise ConfigError(f"There is no recipe {argv[0]!r}: rondo train pretrain, or rondo train sft.")
    kind: Kind = "pretrain" if argv[0] == "pretrain" else "sft"
    parser = Parser(f"rondo train {kind}", "Train a model; the same command again resumes.")
    parser.add_argument("--model", help="a name from `rondo model list`, a folder, or a job's hash")
    parser.add_argument(
        "--data",
        action="append",
        metavar="SOURCE[@WEIGHT]",
        help="prepared shards, a .jsonl, .txt or .parquet file, or a folder of them, here or at s3://; "
        "more than one are mixed",
    )
    parser.epilog = "Every setting is a flag too: --train.lr=3e-4; `rondo config` lists them."
    if any(flag in argv for flag in ("-h", "--help")):
        parser.print_help()
        return 0
    command = read_command_line(argv[1:])
    given = {
        name: value for name, value in vars(parser.parse_args(command.rest)).items() if value is not None
    }
    config = command.config.tree.train.model_copy(update=given)

    from rondo.cli.steps import follow
    from rondo.train import jobs

    plan = jobs.plan(kind, config)
    return follow(plan.job, kind, config.steps, partial(jobs.run, plan))
