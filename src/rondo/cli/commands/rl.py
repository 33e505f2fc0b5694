"""`rondo rl`: tune a model with reinforcement learning, from wherever it stopped."""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Callable
from functools import partial
from pathlib import Path

from rondo.base.errors import ConfigError
from rondo.base.telemetry.activity import activity
from rondo.cli.options.arguments import VerbParser
from rondo.cli.options.emit import add_emit, emitted, explicit
from rondo.cli.options.scopes import RL
from rondo.cli.options.short import read_settings
from rondo.cli.subcommands.job_submit import add_submit, submitted
from rondo.cli.view.fetch import fetch_data, fetch_named_models
from rondo.jobs import attempt

VERBS = {
    "rollouts": "rondo.cli.subcommands.rl_rollouts",
    "alarms": "rondo.cli.subcommands.rl_alarms",
    "plot": "rondo.cli.subcommands.rl_plot",
}
"""To look at a job with, while it runs or later."""


def run(argv: list[str]) -> int:
    if argv and argv[0] in VERBS:
        code: int = importlib.import_module(VERBS[argv[0]]).run(argv[1:])
        return code
    about = (
        "Tune a model with reinforcement learning; the same command again resumes. Several ranks: torchrun "
        "--nproc-per-node 8 -m rondo rl ..., or the same under mpirun or srun."
    )
    parser = VerbParser("rondo rl", about, RL)
    parser.add_argument(
        "file", nargs="?", metavar="CONFIG.toml", help="settings under [rl]; flags go over it"
    )
    parser.add_argument(
        "--model",
        metavar="MODEL",
        help="a name from `rondo model list`, a folder, a job's name or hash, or ORG/NAME[@REVISION]",
    )
    parser.add_argument(
        "--task",
        help="reverse, add, sort, guess, calculator, a JSON Lines file, a data set ORG/NAME[:SPLIT], or "
        "module:attribute",
    )
    parser.add_argument("--name", help="name of the job; every command accepts it in place of the hash")
    add_emit(parser)
    parser.epilog = "Inspect a job: rondo rl rollouts JOB, rondo rl alarms JOB, rondo rl plot JOB."
    add_submit(parser)
    command = read_settings(parser, _with_config(argv))
    if command is None:
        return 0
    told = parser.parse_args(command.rest)
    if (sent := submitted("rl", "rl", command, told)) is not None:
        return sent
    given = {name: value for name, value in vars(told).items() if value is not None}
    if (stray := given.pop("file", None)) is not None:
        raise _stray(stray)
    tree = command.config.tree
    own = explicit(tree.rl, "rl", command.config.sources)
    if (text := emitted(["rl"], given, own, tree.gateway.jobs)) is not None:
        print(text)
        return 0
    config = tree.rl.model_copy(update=given)
    models = {
        "rl.model": config.model,
        "rl.critic.model": config.critic.model,
        "rl.reward_model.model": config.reward_model.model,
        "rl.distill.teacher": config.distill.teacher,
    }
    fetch_named_models(models)

    from rondo.parallel.ranks.world import read_world
    from rondo.rl.tasks.files import dataset_task
    from rondo.rl.tasks.registry import find, is_records

    world = read_world()
    # Records are validated before torch is imported, so that a mistake in them is reported at once.
    task = None
    if config.model and is_records(config.task):
        if dataset_task(config.task) is not None:
            fetch_data(config.task)
        task = find(config.task, config.grader, config.max_broken)

    with activity("importing torch"):
        from rondo.cli.view.start import show_rl
        from rondo.cli.view.steps import follow, say_aborted, say_paused
        from rondo.parallel.ranks.crew import Aborted, Paused, together
        from rondo.rl import jobs
        from rondo.train.jobs import device_of

    try:
        with (
            together(world, config.layout, device_of(config.device, world), "rl") as crew,
            attempt.beating(world.rank),
        ):
            plan = jobs.plan(config, task, crew)
            run: Callable[..., Path] = partial(jobs.run, crew=crew)
            if config.ray.engines:
                run = importlib.import_module("rondo.rl.remote.ray").run
            if crew.first:
                show_rl(plan)
                return follow(plan.job, f"rl {config.task}", config.steps, partial(run, plan))
            run(plan)
    except Paused as pause:
        return say_paused(pause) if world.first else pause.exit_code
    except Aborted:
        return say_aborted()
    return 0


def _stray(word: str) -> ConfigError:
    """Error for a word that is neither a flag nor a config file."""
    near = difflib.get_close_matches(word, VERBS, n=1)
    meant = f"`rondo rl {near[0]} JOB`" if near else f"--task {word}"
    return ConfigError(f"{word!r} is no file of settings, which ends in .toml. Did you mean {meant}?")


def _with_config(argv: list[str]) -> list[str]:
    """A file as the first argument means `--config`."""
    return ["--config", *argv] if argv and argv[0].endswith(".toml") else argv
