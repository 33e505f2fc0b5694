"""`rondo train pretrain|sft|preference|reward`: a training job, from wherever it stopped."""

from __future__ import annotations

import sys
from functools import partial
from typing import get_args

from rondo.cli.options.arguments import VerbParser
from rondo.cli.options.tree import read_command_line
from rondo.cli.options.verbs import unknown_verb
from rondo.cli.view.fetch import fetch_data, fetch_model
from rondo.train.config import Kind, TrainConfig

USAGE = """usage: rondo train RECIPE --model MODEL --data SOURCE [--train.KEY=VALUE ...]

  pretrain    every token of every document
  sft         what the assistant says, through the model's chat template
  preference  answers that were liked over those that were not: DPO, IPO, KTO or SimPO
  reward      a model that scores answers, from pairs (Bradley-Terry)

Data are JSON lines: {"text": ...}, {"messages": [...]} or {"prompt": ..., "completion": ...}; or plain text, or
Parquet, or what `rondo data prepare` wrote. Pairs are {"prompt" or "messages": ..., "chosen": ...,
"rejected": ...}; KTO also takes {"prompt" or "messages": ..., "completion": ..., "label": true or false}.
The same command again resumes the job from its last checkpoint. `rondo config` lists the settings.
Over several ranks: torchrun --nproc-per-node 8 -m rondo train ..., or the same under mpirun or srun."""

KINDS: dict[str, Kind] = {kind: kind for kind in get_args(Kind)}


def run(argv: list[str]) -> int:
    if not argv or argv[0] in ("-h", "--help"):
        print(USAGE)
        return 0
    if argv[0] not in KINDS:
        raise unknown_verb("rondo train", KINDS, argv[0])
    kind = KINDS[argv[0]]
    about = "Train a model; the same command again resumes."
    parser = VerbParser(f"rondo train {kind}", about, "train", TrainConfig.model_fields)
    parser.add_argument(
        "--model", help="a name from `rondo model list`, a folder, a job's hash, or ORG/NAME[@REVISION]"
    )
    parser.add_argument(
        "--data",
        action="append",
        metavar="SOURCE[@WEIGHT]",
        help="prepared shards, a .jsonl, .txt or .parquet file, or a folder of them, here or at s3://; or "
        "ORG/NAME[@REVISION][:SPLIT] of the Hugging Face Hub; more than one are mixed",
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
