"""`rondo demo`: pretrain, tune and reinforce a small model on this machine, then chat with it."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from rondo.cli.options.arguments import VerbParser
from rondo.cli.options.short import read_short
from rondo.cli.options.tree import RondoConfig

if TYPE_CHECKING:
    from rondo.demo.pipeline import DemoResult


def run(argv: list[str]) -> int:
    parser = VerbParser(
        "rondo demo", "From nothing to a served model tuned with reinforcement learning, in minutes."
    )
    parser.add_argument(
        "--task", choices=("reverse", "add", "sort"), default="reverse", help="what it learns (reverse)"
    )
    parser.add_argument("--seed", type=int, default=0, help="equal seeds make equal models (0)")
    parser.add_argument("--quick", action="store_true", help="run every part, but too briefly to learn much")
    parser.add_argument("--no-serve", action="store_true", help="stop when the model is saved")
    parser.add_argument("--json", action="store_true", help="print the result as one JSON line")
    command = read_short(parser, ("--port",), argv)
    if command is None:
        return 0
    given = parser.parse_args(command.rest)
    tree = command.config.tree
    if not given.no_serve:
        _check_port(tree)

    from rondo.cli.view.demo_view import demo_view
    from rondo.demo.pipeline import NAME, run_demo
    from rondo.demo.recipe import QUICK, recipe_for

    with demo_view() as on_event:
        recipe, name = (
            (QUICK, f"{NAME}-quick") if given.quick else (recipe_for(given.task), _name(given.task))
        )
        result = run_demo(given.task, given.seed, recipe, on_event, name)
    url = None if given.no_serve else f"http://{tree.server.host}:{tree.server.port}"
    _tell(result, url, given.json)
    if given.no_serve:
        return 0
    from rondo.cli.commands.serve import serve

    return serve(result.model, tree)


def _tell(result: DemoResult, url: str | None, as_json: bool) -> None:
    if as_json:
        print(json.dumps({**asdict(result), "url": url}), flush=True)
        return
    from rondo.rl.tasks.registry import task

    goal = task(result.task)
    problem = goal.prompts(1, 1, "held_out")[0]
    print(
        f"\n{result.task}: right on {result.reward_start:.0%} of held-out prompts before RL, "
        f"{result.reward_end:.0%} after {result.steps} steps; {result.seconds:.0f} s in all.\n"
        f"Largest difference between the learner's and the sampler's log-probabilities: "
        f"{result.logprob_max_diff:.1e}.\nThe model is in {result.model}.",
        flush=True,
    )
    if url:
        body = json.dumps({"model": Path(result.model).name, "messages": problem.messages, "temperature": 0})
        right = goal.solve(problem.facts).splitlines()[-1]
        print(f"\nAsk it ({right} is right; Ctrl-C ends):\n", flush=True)
        print(
            f"  curl {url}/v1/chat/completions -H 'Content-Type: application/json' -d '{body}'\n", flush=True
        )
    else:
        print(f"Serve it with: rondo serve {Path(result.model).name}", file=sys.stderr)


def _name(task: str) -> str:
    """`rondo up` serves the model of the default task; the others keep out of its way."""
    from rondo.demo.pipeline import NAME

    return NAME if task == "reverse" else f"{NAME}-{task}"


def _check_port(tree: RondoConfig) -> None:
    """Minutes of making a model should not end in a port that is taken."""
    from rondo.web.exposure import listen

    listen(tree.server).close()
