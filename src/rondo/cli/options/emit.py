"""`--emit`: a job as a file for another scheduler, instead of running it."""

from __future__ import annotations

import contextlib
import itertools
import json
import math
from argparse import SUPPRESS
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rondo.base.settings.config import Section
from rondo.cli.options.arguments import VerbParser, positive_count

if TYPE_CHECKING:
    from rondo.control.config import JobsConfig
    from rondo.control.jobs.launchers.skypilot import EngineTasks
    from rondo.control.jobs.request import ResourceRequest

FORMATS = ("kubernetes", "jobset", "skypilot", "slurm")
NUMBERS = {
    "nodes": "machines of the job",
    "gpus": "GPUs of all machines together; a rank for each",
    "ranks": "processes of all machines together",
    "cpus": "CPU cores of a rank",
    "memory": "MiB of memory of a machine",
    "time-limit": "seconds after which the job saves, and continues in another attempt",
}
RAY = "--rl.ray."
HOME = "/rondo"
"""RONDO_HOME in a pod."""


def add_resources(parser: VerbParser, shown: bool = True) -> None:
    for name, text in NUMBERS.items():
        help = text if shown else SUPPRESS
        parser.add_argument(f"--{name}", type=positive_count, metavar="N", help=help)


def take_resources(given: dict[str, Any]) -> dict[str, int]:
    """The set options of `add_resources`, by the names of a request. Takes them out of `given`."""
    names = [name.replace("-", "_") for name in NUMBERS]
    return {name: value for name in names if (value := given.pop(name, None)) is not None}


def add_emit(parser: VerbParser) -> None:
    """Beside the options of `add_resources`."""
    parser.add_argument(
        "--emit",
        choices=FORMATS,
        metavar="FORMAT",
        help="print it as a job of kubernetes, jobset, skypilot or slurm",
    )
    parser.add_argument("--gpu-type", metavar="NAME", help=SUPPRESS)


def emitted(
    verb: Sequence[str], given: dict[str, Any], settings: Mapping[str, Any], config: JobsConfig
) -> str | None:
    """The text to print, or None without `--emit`. Takes its options out of `given`. `settings`: of the job, by name
    below `verb`'s section, without the settings in `given`."""
    format = given.pop("emit", None)
    resources = take_resources(given)
    gpu = given.pop("gpu_type", None)
    if format is None:
        if resources or gpu:
            from rondo.base.errors import ConfigError

            flag = (min(resources) if resources else "gpu_type").replace("_", "-")
            raise ConfigError(
                f"--{flag} describes a job of --submit or --emit: give one of them too.", param=flag
            )
        return None
    from rondo.control.jobs.request import request_of
    from rondo.jobs.spec import JobSpec

    kind = verb[-1]
    spec = JobSpec(kind, {**settings, **given}, resources=resources)  # type: ignore[arg-type]
    request = request_of(spec, config.time_limit)
    name = f"rondo-{given.get('name') or kind}-{spec.digest[:8]}".lower().replace("_", "-").replace(".", "-")
    return WRITERS[format](name, spec.arguments(), request, config, gpu)


def explicit(section: Section, prefix: str, sources: Mapping[str, Any]) -> dict[str, Any]:
    """Settings below `prefix` with other values than the defaults, as the command line takes them."""
    found = {}
    for path, source in sources.items():
        if path.startswith(prefix + ".") and source.kind != "default":
            names = path.removeprefix(prefix + ".").split(".")
            value: Any = section
            for each in names:
                value = getattr(value, each)
            found[".".join(names)] = value
    return found


def _kubernetes(
    name: str, arguments: list[str], request: ResourceRequest, config: JobsConfig, gpu: str | None
) -> str:
    return _manifest("trainjob", name, arguments, request, config)


def _jobset(
    name: str, arguments: list[str], request: ResourceRequest, config: JobsConfig, gpu: str | None
) -> str:
    return _manifest("jobset", name, arguments, request, config)


def _manifest(
    kind: Any, name: str, arguments: list[str], request: ResourceRequest, config: JobsConfig
) -> str:
    from rondo.control.jobs.launchers.kubernetes.manifest import manifest_of

    folder = f"{HOME}/runs/{name}/1"
    return _yaml(manifest_of(kind, name, arguments, request, config.kubernetes, HOME, folder))


def _slurm(
    name: str, arguments: list[str], request: ResourceRequest, config: JobsConfig, gpu: str | None
) -> str:
    from rondo.control.jobs.launchers.slurm.script import script_of

    return script_of(arguments, request, config.slurm, name, name).rstrip()


def _skypilot(
    name: str, arguments: list[str], request: ResourceRequest, config: JobsConfig, gpu: str | None
) -> str:
    from rondo.control.jobs.launchers.skypilot import group_of, task_of

    files = dict[str, str]()
    words = [_copied(word, files) for word in arguments]
    if (engines := _engines(words)) is None:
        return _yaml(task_of(name, words, request, gpu, files))
    own = [word for word in words if not word.startswith(RAY)]
    if not request.gpus_per_node:
        request = replace(request, gpus_per_node=engines.gpus)
    return "\n---\n".join(map(_yaml, group_of(name, own, request, engines, gpu, files)))


def _copied(word: str, files: dict[str, str]) -> str:
    """The argument with paths of the machines in place of local ones, one or a JSON list. Adds them to `files`."""
    flag, equals, value = word.partition("=")
    if not flag.endswith((".model", ".data", ".task")):
        return word
    if value.startswith("["):
        with contextlib.suppress(ValueError):
            return f"{flag}={json.dumps([_there(str(each), files) for each in json.loads(value)])}"
    return f"{flag}{equals}{_there(value, files)}"


def _there(value: str, files: dict[str, str]) -> str:
    """Path of a local file on the machines: equal names are in folders with numbers. Other values are unchanged."""
    if not value or "\n" in value or len(value) >= 1024 or not Path(value).expanduser().exists():
        return value
    here = Path(value).expanduser().resolve()
    for number in itertools.count(1):
        there = f"{HOME}-inputs/{here.name}" if number == 1 else f"{HOME}-inputs/{number}/{here.name}"
        if files.setdefault(there, str(here)) == str(here):
            break
    return there


def _engines(words: Sequence[str]) -> EngineTasks | None:
    """The engines of an RL job with rl.ray.engines; None if it has one role."""
    from rondo.base.errors import ConfigError
    from rondo.control.jobs.launchers.skypilot import EngineTasks
    from rondo.rl.remote.config import RayConfig

    told = dict(word.removeprefix(RAY).split("=", 1) for word in words if word.startswith(RAY))
    if "engines" not in told:
        return None
    config = RayConfig(
        **{name: value if name == "address" else json.loads(value) for name, value in told.items()}
    )
    model = next((word.partition("=")[2] for word in words if word.startswith("--rl.model=")), "")
    if not model:
        raise ConfigError(
            "--emit skypilot with engines needs the model that they serve: give --model.", param="model"
        )
    cpus, gpus = math.ceil(config.cpus), math.ceil(config.gpus)
    return EngineTasks(config.engines, model, gpus, cpus, config.serve) if config.engines else None


def _yaml(found: Mapping[str, Any]) -> str:
    """JSON is YAML too, where PyYAML is not installed."""
    try:
        import yaml
    except ImportError:
        return json.dumps(found, indent=2)
    return str(yaml.dump(found, Dumper=_dumper(yaml), sort_keys=False, width=1000)).rstrip()


def _dumper(yaml: Any) -> Any:
    """Texts of several lines are blocks."""

    class Dumper(yaml.SafeDumper):  # type: ignore[misc]
        pass

    def text(dumper: Any, value: str) -> Any:
        style = "|" if "\n" in value else None
        return dumper.represent_scalar("tag:yaml.org,2002:str", value, style=style)

    Dumper.add_representer(str, text)
    return Dumper


WRITERS: Mapping[str, Callable[..., str]] = {
    "kubernetes": _kubernetes,
    "jobset": _jobset,
    "skypilot": _skypilot,
    "slurm": _slurm,
}
