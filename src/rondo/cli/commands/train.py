"""`rondo train pretrain|sft|preference|reward`: a training job, from wherever it stopped."""

from __future__ import annotations

import sys
from functools import partial
from typing import get_args

from rondo.cli.options.arguments import VerbParser
from rondo.cli.options.scopes import train_scope
from rondo.cli.options.short import read_settings
from rondo.cli.options.verbs import run_verb
from rondo.cli.view.fetch import fetch_data, fetch_model
from rondo.train.config import Kind

USAGE = """usage: rondo train RECIPE --model MODEL --data SOURCE [--SETTING=VALUE ...]

  pretrain    train on every token of every document
  sft         train on the assistant's messages through the chat template
  preference  train on chosen and rejected answers: DPO, IPO, KTO or SimPO
  reward      train a model that scores answers, from pairs (Bradley-Terry)

Data are JSON lines: {"text": ...}, {"messages": [...]} or {"prompt": ...,
"completion": ...}; or plain text, or Parquet, or shards of `rondo data prepare`.
Pairs are {"prompt" or "messages": ..., "chosen": ..., "rejected": ...}; KTO also
takes {"prompt" or "messages": ..., "completion": ..., "label": true or false}.

  rondo train RECIPE --help   options and settings of a recipe

The same command again resumes the job from its last checkpoint. Several ranks:
torchrun --nproc-per-node 8 -m rondo train ..., or the same under mpirun or srun."""


def run(argv: list[str]) -> int:
    return run_verb("rondo train", VERBS, USAGE, argv)


def _train(kind: Kind, argv: list[str]) -> int:
    about = "Train a model; the same command again resumes."
    parser = VerbParser(f"rondo train {kind}", about, train_scope(kind))
    parser.add_argument(
        "--model",
        metavar="MODEL",
        help="a name from `rondo model list`, a folder, a job's hash, or ORG/NAME[@REVISION]",
    )
    parser.add_argument(
        "--data",
        action="append",
        metavar="SOURCE[@WEIGHT]",
        help="prepared shards, a .jsonl, .txt or .parquet file, or a folder of them, here or at s3://; or "
        "ORG/NAME[@REVISION][:SPLIT] of the Hugging Face Hub; more than one are mixed",
    )
    command = read_settings(parser, argv)
    if command is None:
        return 0
    given = {
        name: value for name, value in vars(parser.parse_args(command.rest)).items() if value is not None
    }
    config = command.config.tree.train.model_copy(update=given)
    if config.model:
        fetch_model(config.model)
    fetch_data(config.data or [])
    fetch_data(config.evaluate.data or [])

    from rondo.cli.view.steps import follow
    from rondo.parallel.ranks.crew import Paused, together
    from rondo.parallel.ranks.world import read_world
    from rondo.train import jobs

    world = read_world()
    try:
        with together(world, config.layout, jobs.device_of(config.device, world)) as crew:
            plan = jobs.plan(kind, config, crew)
            if crew.first:
                return follow(plan.job, kind, config.steps, partial(jobs.run, plan, crew=crew))
            jobs.run(plan, crew=crew)
    except Paused as pause:
        if world.first:
            print(pause, file=sys.stderr)
    return 0


VERBS = {kind: partial(_train, kind) for kind in get_args(Kind)}
