"""`rondo rl`: tune a model with reinforcement learning, from wherever it stopped."""

from __future__ import annotations

import difflib
import importlib
import sys
from functools import partial

from rondo.base.errors import ConfigError
from rondo.cli.options.arguments import VerbParser
from rondo.cli.options.tree import read_command_line
from rondo.cli.view.fetch import fetch_named_models
from rondo.rl.config import RlConfig

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
    about = "Tune a model with reinforcement learning; the same command again resumes."
    parser = VerbParser("rondo rl", about, "rl", RlConfig.model_fields)
    parser.add_argument(
        "file", nargs="?", metavar="CONFIG.toml", help="settings under [rl]; flags go over it"
    )
    parser.add_argument(
        "--model", help="a name from `rondo model list`, a folder, a job's hash, or ORG/NAME[@REVISION]"
    )
    parser.add_argument(
        "--task",
        help="reverse, add, sort, guess, calculator, a JSON Lines file, or module:attribute",
    )
    parser.epilog = "Every setting is a flag too: --rl.lr=1e-5; `rondo config` lists them. "
    parser.epilog += "To look at a job: rondo rl rollouts JOB, rondo rl alarms JOB, rondo rl plot JOB."
    if any(flag in argv for flag in ("-h", "--help")):
        parser.print_help()
        return 0
    command = read_command_line(_with_config(argv))
    given = {
        name: value for name, value in vars(parser.parse_args(command.rest)).items() if value is not None
    }
    if (stray := given.pop("file", None)) is not None:
        raise _stray(stray)
    config = command.config.tree.rl.model_copy(update=given)
    models = {
        "rl.model": config.model,
        "rl.critic.model": config.critic.model,
        "rl.reward_model.model": config.reward_model.model,
        "rl.distill.teacher": config.distill.teacher,
    }
    fetch_named_models(models)

    from rondo.cli.view.steps import follow
    from rondo.parallel.ranks.crew import Paused
    from rondo.rl import jobs

    plan = jobs.plan(config)
    run = importlib.import_module("rondo.rl.remote.ray").run if config.ray.engines else jobs.run
    try:
        return follow(plan.job, f"rl {config.task}", config.steps, partial(run, plan))
    except Paused as pause:
        print(pause, file=sys.stderr)
        return 0


def _stray(word: str) -> ConfigError:
    """Error for a word that is neither a flag nor a config file."""
    near = difflib.get_close_matches(word, VERBS, n=1)
    meant = f"`rondo rl {near[0]} JOB`" if near else f"--task {word}"
    return ConfigError(f"{word!r} is no file of settings, which ends in .toml. Did you mean {meant}?")


def _with_config(argv: list[str]) -> list[str]:
    """A file as the first argument means `--config`."""
    return ["--config", *argv] if argv and argv[0].endswith(".toml") else argv
