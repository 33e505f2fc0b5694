"""`rondo train pretrain|sft|preference|reward`: a training job, from wherever it stopped."""

from __future__ import annotations

import sys
from functools import partial
from typing import TYPE_CHECKING, get_args

from rondo.base.telemetry.activity import activity
from rondo.cli.options.arguments import VerbParser
from rondo.cli.options.emit import add_emit, emitted, explicit
from rondo.cli.options.scopes import train_scope
from rondo.cli.options.short import read_settings
from rondo.cli.options.verbs import run_verb
from rondo.cli.subcommands.job_submit import add_submit, submitted
from rondo.cli.view.fetch import fetch_data, fetch_model
from rondo.jobs import attempt
from rondo.train.config import Kind, TrainConfig

if TYPE_CHECKING:
    from pathlib import Path

    from rondo.cli.view.steps import OnResume, OnStep
    from rondo.parallel.ranks.crew import RankSupervisor
    from rondo.train.jobs import TrainJobPlan
    from rondo.train.recipes.data import OpenedData

USAGE = """usage: rondo train RECIPE --model MODEL --data SOURCE [--SETTING=VALUE ...]

  pretrain    train on every token of every document
  sft         train on the assistant's messages through the chat template
  preference  train on chosen and rejected answers: DPO, IPO, KTO or SimPO
  reward      train a model that scores answers, from pairs (Bradley-Terry)

Data are JSON, JSON Lines, CSV, TSV or Parquet files in the format of Alpaca,
ShareGPT, OpenAI chat, prompt/completion, question/answer, preference pairs or
labelled answers (KTO), which is detected; plain text; or prepared shards.
`rondo data preview FILE` shows how a file is read.

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
        help="a name from `rondo model list`, a folder, a job's name or hash, or ORG/NAME[@REVISION]",
    )
    parser.add_argument(
        "--data",
        action="append",
        metavar="SOURCE[@WEIGHT]",
        help="a .jsonl, .json, .csv, .tsv, .txt or .parquet file, a folder of them, or prepared shards, here or at "
        "s3://; or ORG/NAME[@REVISION][:SPLIT] of the Hugging Face Hub; more than one are mixed",
    )
    parser.add_argument("--name", help="name of the job; every command accepts it in place of the hash")
    add_submit(parser)
    add_emit(parser)
    command = read_settings(parser, argv)
    if command is None:
        return 0
    told = parser.parse_args(command.rest)
    if (code := submitted(kind, "train", command, told)) is not None:
        return code
    given = {name: value for name, value in vars(told).items() if value is not None}
    tree = command.config.tree
    own = explicit(tree.train, "train", command.config.sources)
    if (text := emitted(["train", kind], given, own, tree.gateway.jobs)) is not None:
        print(text)
        return 0
    config = tree.train.model_copy(update=given)
    if config.model:
        fetch_model(config.model)
    fetch_data(config.data or [])
    fetch_data(config.evaluate.data or [])

    from rondo.parallel.ranks.world import read_world

    world = read_world()
    opened = _read(kind, config) if world.size == 1 else None

    with activity("importing torch"):
        from rondo.cli.view.start import show_training
        from rondo.cli.view.steps import follow, say_aborted, say_paused
        from rondo.parallel.ranks.crew import Aborted, Paused, together
        from rondo.train import jobs

    try:
        with (
            attempt.beating(world.rank),
            together(world, config.layout, jobs.device_of(config.device, world)) as crew,
        ):
            plan = jobs.plan(kind, config, crew, opened)
            if crew.first:
                show_training(plan)
                _preview(plan)
                return follow(plan.job, kind, plan.config.steps, partial(_run, plan, crew))
            jobs.run(plan, crew=crew)
    except Paused as pause:
        return say_paused(pause) if world.first else pause.exit_code
    except Aborted:
        return say_aborted()
    return 0


def _read(kind: Kind, config: TrainConfig) -> OpenedData:
    """Reads and validates the data before torch is imported: a mistake in a file is reported at once."""
    from rondo.cli.view.preview import show_data
    from rondo.train.recipes import data

    data.check_given(config)
    opened = data.open_data(kind, config)
    show_data(opened, sys.stderr)
    return opened


def _run(plan: TrainJobPlan, crew: RankSupervisor, on_step: OnStep, on_resume: OnResume) -> Path:
    from rondo.cli.view.start import with_time_left
    from rondo.train import jobs

    return jobs.run(plan, with_time_left(on_step, plan.config.steps), on_resume, crew)


def _preview(plan: TrainJobPlan) -> None:
    from rondo.cli.view.preview import show_over_long, show_preview
    from rondo.train.recipes.preview import preview

    if plan.tokenized:
        show_over_long(plan.tokenized, plan.config.max_length, sys.stderr)
    if plan.config.preview and not plan.job.done:
        examples = preview(plan.kind, plan.opened.training, plan.tokenizer, plan.config, plan.config.preview)
        show_preview(examples, sys.stderr)


VERBS = {kind: partial(_train, kind) for kind in get_args(Kind)}
