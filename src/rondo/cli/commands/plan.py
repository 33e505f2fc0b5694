"""`rondo plan`: a layout and a memory policy for a model, a cluster and a batch; `--serve`, replicas for a load."""

from __future__ import annotations

import argparse
import json
import re
import shlex
from dataclasses import asdict, replace
from typing import TYPE_CHECKING

from rondo.base.errors import ConfigError
from rondo.base.storage.home import models_dir
from rondo.base.storage.paths import path_of
from rondo.cli.options.arguments import VerbParser

if TYPE_CHECKING:
    from pathlib import Path

    from rondo.models import ModelConfig
    from rondo.plan.cost.cluster import Cluster
    from rondo.plan.sizes.model import ModelShape

SIZES = {
    "hidden_size": "--hidden-size",
    "num_hidden_layers": "--layers",
    "num_attention_heads": "--heads",
    "num_key_value_heads": "--kv-heads",
    "head_dim": "--head-dim",
    "intermediate_size": "--intermediate-size",
    "vocab_size": "--vocab-size",
    "num_experts": "--experts",
    "num_experts_per_tok": "--experts-per-token",
    "moe_intermediate_size": "--expert-size",
}
OPTIMIZERS = {"adamw": 12, "muon": 8}


def run(argv: list[str]) -> int:
    given = _parser().parse_args(argv)
    if given.serve and given.dry_run:
        raise ConfigError("--dry-run builds a plan for training; leave --serve out.", param="dry_run")
    if given.serve and given.write:
        raise ConfigError("--write writes a plan for training; leave --serve out.", param="write")
    shape, cluster = _shape(given), _cluster(given)
    return _serve(given, shape, cluster) if given.serve else _train(given, shape, cluster)


def _train(given: argparse.Namespace, shape: ModelShape, cluster: Cluster) -> int:
    from rondo.plan.choice.planning import plan
    from rondo.plan.choice.search import PINS, TRAINER, PlanningTask
    from rondo.plan.cost.layout import StepBatch
    from rondo.plan.job import command, config, toml
    from rondo.plan.report import as_object, lines

    if given.tokens_per_step % given.seq:
        raise ConfigError(
            f"--tokens-per-step {given.tokens_per_step} does not divide into sequences of {given.seq}.",
            param="tokens_per_step",
        )
    if given.precision not in ("bf16", "fp16", *cluster.gpu.peaks):
        raise ConfigError(
            f"{cluster.gpu.name} has no {given.precision}; it has {', '.join(cluster.gpu.peaks)}.",
            param="precision",
        )
    policy = replace(
        TRAINER,
        precision=given.precision,
        loss=given.loss,
        swiglu=given.swiglu,
        optimizer_bytes=OPTIMIZERS[given.optimizer],
    )
    pins = {name: value for name in PINS if (value := getattr(given, name)) is not None}
    batch = StepBatch(given.tokens_per_step // given.seq, given.seq)
    found = plan(PlanningTask(shape, cluster, batch, policy, pins), given.profile)
    said, fits = as_object(found), found.chosen is not None and found.chosen.fits
    words = lines(found)
    chosen = found.chosen
    if chosen is not None and shape.gated:
        optimizer, file = given.optimizer, given.write or "plan.toml"
        settings, line = config(chosen, optimizer), command(chosen, _trained_model(given), file)
        said["train"] = {"command": line, "config": settings}
        words += _job_lines(toml(settings), line, file, given.write)
    elif given.write:
        raise ConfigError(f"--write: there is no plan of {shape.name} that can be trained.", param="write")
    if given.dry_run and found.chosen is not None:
        from rondo.plan.choice import built
        from rondo.train.learner.dry_run import dry_run

        kinds = dry_run(found.chosen, _model(given, shape))
        said["dry_run"] = [asdict(kind) for kind in kinds]
        words += ["", *built.lines(kinds, found.chosen)]
        fits = fits and all(kind.memory <= cluster.gpu.memory for kind in kinds)
    print(json.dumps(said) if given.json else "\n".join(words))
    return 0 if fits else 1


def _job_lines(config: str, command: list[str], file: str, write: str | None) -> list[str]:
    if write is not None:
        try:
            path_of(write, "--write").write_text(config, "utf-8")
        except OSError as error:
            raise ConfigError(f"--write: cannot write {write}: {error.strerror}.", param="write") from None
    shown = [] if write is not None else [f"{file} (--write {file} makes it):", "", *config.splitlines(), ""]
    return ["", *shown, "train it with:", f"  {shlex.join(command)}"]


def _model(given: argparse.Namespace, shape: ModelShape) -> ModelConfig:
    """The model itself, where there is one; else one of these sizes."""
    from rondo.models import parse
    from rondo.plan.sizes.hf import hf_of, read_config

    path = _path(given)
    sizes = {key: getattr(given, key) for key in SIZES if getattr(given, key) is not None}
    return parse(read_config(path) | sizes if path is not None else hf_of(shape))


def _serve(given: argparse.Namespace, shape: ModelShape, cluster: Cluster) -> int:
    from rondo.base.units import human_count
    from rondo.plan.report import serving_lines, serving_object
    from rondo.plan.serving import Load, plan_serving

    load = Load(given.rate, given.prompt, given.answer, given.ttft, given.tpot, given.shared)
    served = plan_serving(shape, cluster, load, tp=given.tp, weights=given.weights, cache=given.kv_cache)
    title = (
        f"{shape.name}: {human_count(shape.parameters)} parameters on {cluster.gpus} x {cluster.gpu.name}, "
        f"{cluster.gpu.memory / 2**30:.0f} GiB each"
    )
    said = [json.dumps(serving_object(served, load))] if given.json else serving_lines(served, load, title)
    print("\n".join(said))
    return 0 if served.best is not None else 1


def _shape(given: argparse.Namespace) -> ModelShape:
    """A known name, a name from `rondo model list`, a folder, a config.json, or a name of the Hugging Face Hub; single
    sizes by flags."""
    from rondo.hub.cache import repo_of_snapshot
    from rondo.plan.sizes.hf import read_config, shape_of
    from rondo.plan.sizes.shapes import SHAPES

    sizes = {key: getattr(given, key) for key in SIZES if getattr(given, key) is not None}
    if given.model is None:
        if not sizes:
            raise ConfigError(
                "Say which model: a name, a folder, a config.json, or its sizes.", param="model"
            )
        return shape_of(sizes | {"model_type": "llama"}, "the model")
    if given.model in SHAPES:
        if sizes:
            raise ConfigError(
                f"{given.model} has its sizes; leave {SIZES[min(sizes)]} out, or give all of them.",
                param=min(sizes),
            )
        return SHAPES[given.model]
    path = _path(given)
    assert path is not None
    if not path.exists():
        import difflib

        near = difflib.get_close_matches(given.model, SHAPES, 1)
        hint = f" Did you mean {near[0]}?" if near else ""
        raise ConfigError(
            f"There is no model {given.model!r}.{hint} Known by name: {', '.join(SHAPES)}; or give a folder, a "
            "config.json, or ORG/NAME of the Hugging Face Hub.",
            param="model",
        )
    name = path.parent.name if path.name == "config.json" else path.name
    if (snapshot := repo_of_snapshot(path)) is not None:
        name = snapshot[0]
    return shape_of(read_config(path) | sizes, name or "the model")


def _trained_model(given: argparse.Namespace) -> str:
    """What `rondo train --model` takes: sizes that are known by name alone are no checkpoint."""
    return "MODEL" if _path(given) is None else str(given.model).removesuffix("/config.json")


def _path(given: argparse.Namespace) -> Path | None:
    """Of a model that is neither known by name nor given by its sizes. Of a model of the Hugging Face Hub only the
    config is downloaded."""
    from rondo.hub.models import pull_config
    from rondo.hub.names import hub_name
    from rondo.plan.sizes.shapes import SHAPES

    if given.model is None or given.model in SHAPES:
        return None
    path = path_of(given.model, "MODEL")
    stored: Path = models_dir() / given.model
    if not path.exists() and "/" not in given.model and stored.is_dir():
        return stored
    name = None if path.exists() else hub_name(given.model)
    return path if name is None else pull_config(name)


def _cluster(given: argparse.Namespace) -> Cluster:
    from rondo.plan.cost.cluster import Cluster, gpu_of

    figures = ("memory", "peak", "bandwidth", "link", "network", "per_node", "host_memory")
    return Cluster(gpu_of(given.gpu, **{name: getattr(given, name) for name in figures}), given.gpus)


def _parser() -> VerbParser:
    parser = VerbParser(
        "rondo plan",
        "Say how to lay a model out over a cluster, and what that comes to: memory, traffic, time. With --serve, how "
        "many replicas a load needs. The exit code is 1 where nothing fits.",
    )
    parser.add_argument(
        "model",
        metavar="MODEL",
        nargs="?",
        help="a known name such as llama-3-8b, a name from `rondo model list`, a folder, a config.json, or "
        "ORG/NAME[@REVISION] of the Hugging Face Hub, of which only the config is downloaded",
    )
    parser.add_argument("--serve", action="store_true", help="plan serving, not training")
    parser.add_argument(
        "--dry-run",
        action="store_true",
        help="build the plan at its true size, on ranks that do not exist, and check shapes and memory",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument(
        "--write", metavar="FILE", help="write the plan as a config of `rondo train`, in TOML"
    )
    _sizes(parser)
    _hardware(parser)
    _training(parser)
    _serving(parser)
    return parser


def _sizes(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("sizes, of a model without a config, or in place of the config's own")
    for key, flag in SIZES.items():
        group.add_argument(flag, dest=key, type=_count, metavar="N", help=f"config.json's {key}")


def _hardware(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("cluster")
    group.add_argument(
        "--gpu", default="h100", metavar="NAME", help="h100 (default), a100, h200, b200, gb300, ..."
    )
    group.add_argument("--gpus", type=_count, default=8, metavar="N", help="how many (8)")
    group.add_argument("--per-node", type=_count, metavar="N", help="how many behind fast links")
    group.add_argument("--memory", type=_figure, metavar="GIB", help="of one")
    group.add_argument("--peak", type=_figure, metavar="TFLOPS", help="of one, dense, in bf16")
    group.add_argument("--bandwidth", type=_figure, metavar="TB/S", help="of its memory")
    group.add_argument(
        "--link", type=_figure, metavar="GB/S", help="inside a node, of one GPU, one direction"
    )
    group.add_argument("--host-memory", type=_figure, metavar="GIB", help="of the host's, one GPU's share")
    group.add_argument(
        "--network", type=_figure, metavar="GB/S", help="between nodes, of one GPU, one direction"
    )


def _training(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("training")
    group.add_argument(
        "--tokens-per-step", type=_count, default=2**22, metavar="N", help="the batch, such as 4M (2**22)"
    )
    group.add_argument("--seq", type=_count, default=8192, metavar="N", help="tokens of a sequence (8192)")
    group.add_argument("--profile", choices=("cost", "classic"), default="cost", help="whose answer to take")
    group.add_argument("--precision", choices=("bf16", "fp16", "fp8"), default="bf16")
    group.add_argument("--optimizer", choices=tuple(OPTIMIZERS), default="adamw")
    group.add_argument("--loss", choices=("plain", "chunked"), default="chunked", help="how logits are kept")
    group.add_argument(
        "--swiglu",
        choices=("kernel", "kept"),
        default="kernel",
        help="kernel computes the activation again in the backward pass, kept does not",
    )
    fixed = parser.add_argument_group("fixed, where the search is to leave a choice alone")
    for name in ("dp", "tp", "pp", "cp", "ep", "virtual", "microbatch"):
        fixed.add_argument(f"--{name}", type=_count, metavar="N")
    fixed.add_argument("--cp-method", choices=("ulysses", "ring"))
    fixed.add_argument("--schedule", choices=("1f1b", "gpipe", "interleaved", "zero-bubble"))
    fixed.add_argument("--zero", type=int, choices=(0, 1, 2, 3))
    fixed.add_argument("--checkpointing", choices=("none", "selective", "full"))
    fixed.add_argument("--offload", choices=("none", "optimizer", "all"))


def _serving(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("serving")
    group.add_argument("--rate", type=_figure, default=1.0, metavar="R", help="requests a second (1)")
    group.add_argument("--prompt", type=_count, default=1024, metavar="N", help="tokens in (1024)")
    group.add_argument("--answer", type=_count, default=256, metavar="N", help="tokens out (256)")
    group.add_argument("--ttft", type=_figure, metavar="SECONDS", help="the most until the first token")
    group.add_argument("--tpot", type=_figure, metavar="SECONDS", help="the most between two tokens")
    group.add_argument(
        "--shared", type=float, default=0.0, metavar="PART", help="of prompts, in the prefix cache"
    )
    group.add_argument("--weights", choices=("bf16", "fp8", "int8", "int4"))
    group.add_argument("--kv-cache", choices=("bf16", "fp8"))


UNITS = {"": 1, "k": 10**3, "K": 2**10, "m": 10**6, "M": 2**20, "g": 10**9, "G": 2**30}


def _count(text: str) -> int:
    """8k is 8000, 8K is 8192."""
    match = re.fullmatch(r"(\d{1,15})([kKmMgG]?)", text)
    if match is None or int(match[1]) == 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number above 0")
    return int(match[1]) * UNITS[match[2]]


def _figure(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < 1e12:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number above 0")
    return value
