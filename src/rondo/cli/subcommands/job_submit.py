"""`--submit` of `rondo train`, `rondo rl` and `rondo evaluate`, and `rondo job submit`: jobs on a gateway."""

from __future__ import annotations

import argparse
from argparse import SUPPRESS
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rondo.base.errors import ConfigError
from rondo.cli.options.arguments import VerbParser
from rondo.cli.options.emit import add_resources, take_resources
from rondo.cli.platform.remote import add_address, gateway_client

if TYPE_CHECKING:
    from rondo.cli.options.tree import CommandLine
    from rondo.client.http import Client
    from rondo.client.platform.jobs import RemoteJob

OWN = {"model", "data", "task", "name"}
"""Settings with a field of their own in a request."""


def add_submit(parser: VerbParser) -> None:
    parser.add_argument(
        "--submit",
        action="store_true",
        help="run as a job of a gateway; rondo job submit --help has its options",
    )
    add_resources(parser, shown=False)
    parser.add_argument("--launcher", metavar="NAME", help=SUPPRESS)
    parser.add_argument("--wait", action="store_true", help=SUPPRESS)
    add_address(parser, shown=False)


def submitted(kind: str, section: str, command: CommandLine, given: argparse.Namespace) -> int | None:
    """Exit code after the submission; None without `--submit`. Removes the options of the submission from `given`."""
    options = vars(given)
    told = {name: options.pop(name) for name in ("submit", "launcher", "wait", "url", "key")}
    if not told["submit"]:
        stray = [name for name in ("launcher", "wait", "url", "key") if told[name]]
        if "emit" not in options:  # which has resources too
            stray += take_resources(options)
        if stray:
            flag = f"--{stray[0].replace('_', '-')}"
            raise ConfigError(f"{flag} belongs to --submit: add it.", param=flag)
        return None
    if options.get("emit"):
        raise ConfigError("--emit prints a job, and --submit submits it: give one of them.", param="--emit")
    resources = take_resources(options)
    settings = explicit(command, section)
    for name, value in vars(given).items():
        if value is not None and name in OWN:
            settings[name] = value
    if kind == "evaluate":
        settings |= {
            f"evaluate.{name}": value for name in ("data", "tasks") if (value := getattr(given, name))
        }
    with gateway_client(told["url"], told["key"]) as client:
        return follow(send(client, kind, settings, resources, told["launcher"]), told["wait"])


def explicit(command: CommandLine, section: str) -> dict[str, Any]:
    """Settings of a section that a file, a variable or a flag has set, by their names below it."""
    prefix = f"{section}."
    rows = command.config.rows()
    return {
        path.removeprefix(prefix): value
        for path, value, source in rows
        if path.startswith(prefix) and source.kind != "default"
    }


def send(
    client: Client, kind: str, settings: dict[str, Any], resources: Mapping[str, int], launcher: str | None
) -> RemoteJob:
    """Uploads the data and submits the job."""
    model, name = settings.pop("model", None), settings.pop("name", None)
    if not model:
        raise ConfigError("No model given: set --model.", param="model")
    rest = {
        key: value for key, value in settings.items() if key not in ("evaluate.data", "evaluate.tasks", *OWN)
    }
    if kind == "rl":
        task = settings.get("task")
        if not task:
            raise ConfigError("No task given: set --task.", param="task")
        return client.rl(model, task, name=name, resources=resources, settings=rest, launcher=launcher)
    held_out = _one(settings.get("evaluate.data"), "evaluate.data")
    if kind == "evaluate":
        tasks = _one(settings.get("evaluate.tasks"), "evaluate.tasks")
        return client.evaluate(model, held_out, tasks, settings=rest, resources=resources, launcher=launcher)
    data = _one(settings.get("data"), "data")
    if data is None:
        raise ConfigError("No data given: set --data.", param="data")
    return client.train(
        model,
        data,
        kind,  # type: ignore[arg-type]  # a recipe of `rondo train`
        validation_data=held_out,
        name=name,
        resources=resources,
        settings=rest,
        launcher=launcher,
    )


def _one(sources: object, name: str) -> str | None:
    """The only source of data: a submitted job reads one file."""
    if isinstance(sources, list | tuple):
        if len(sources) > 1:
            raise ConfigError(f"{name}: a submitted job has one source of data; join the files.", param=name)
        return str(sources[0]) if sources else None
    return None if sources is None else str(sources)


def follow(job: RemoteJob, wait: bool) -> int:
    """Prints the job, and with `wait` its log until it has ended."""
    print(f"job {job.id} is {job.state}" + (f"; hash {job.hash}" if job.hash else ""))
    if not wait:
        print(f"  follow it: rondo job logs -f {job.id}\n  its state: rondo job show {job.id}")
        return 0
    for piece in job.logs(follow=True):
        print(piece, end="", flush=True)
    job.refresh()
    error = job.facts["error"] or {}
    told = f": {error['message']}" if error.get("message") else f"; hash {job.hash}" if job.hash else ""
    print(f"job {job.id} is {job.state}{told}")
    return 0 if job.state == "succeeded" else 1


def submit(argv: list[str]) -> int:
    parser = VerbParser(
        "rondo job submit",
        "Run a program of yours as a job of the gateway: rondo job submit -- python my.py. The key needs the scope "
        "code. rondo train, rl and evaluate take the same options after --submit, and the resources after --emit.",
    )
    parser.add_argument(
        "--file",
        action="append",
        default=[],
        metavar="FILE",
        help="upload a local file into the program's working folder; files among the arguments are uploaded too",
    )
    parser.add_argument("--name", help="name of the job")
    add_resources(parser)
    parser.add_argument("--launcher", metavar="NAME", help="local, slurm, kubernetes or ray (the gateway's)")
    parser.add_argument("--wait", action="store_true", help="print its log until it has ended")
    add_address(parser)
    parser.add_argument("command", nargs="*", metavar="COMMAND", help="after --: program and arguments")
    given = parser.parse_args(argv)
    if not given.command:
        raise ConfigError("No program given: rondo job submit -- python my.py.", param="command")
    files = {_inside(name): Path(name) for name in [*given.file, *filter(_is_local, given.command[1:])]}
    resources = take_resources(vars(given))
    with gateway_client(given.url, given.key) as client:
        job = client.run_script(
            given.command, files, name=given.name, resources=resources, launcher=given.launcher
        )
        return follow(job, given.wait)


def _is_local(word: str) -> bool:
    path = Path(word)
    return not path.is_absolute() and ".." not in path.parts and path.is_file()


def _inside(name: str) -> str:
    """Name in the working folder: the same relative path, else the file's own name."""
    path = Path(name)
    return path.name if path.is_absolute() or ".." in path.parts else str(path)


def execute(argv: list[str]) -> int:
    parser = VerbParser(
        "rondo job exec",
        "Run a program as a submitted job does: with limits, and without keys in its environment.",
    )
    parser.add_argument("--options", default="{}", metavar="JSON", help="files and limits of a submitted job")
    parser.add_argument("command", nargs="+", metavar="COMMAND", help="after --: program and arguments")
    given = parser.parse_args(argv)
    import json

    from rondo.jobs.script import execute as run_program

    try:
        options = json.loads(given.options)
    except ValueError as error:
        raise ConfigError(f"--options is not JSON: {error}.", param="--options") from None
    run_program(given.command, options)
