"""`rondo plan`: a layout and a memory policy for a model, a cluster and a batch; `--serve`, replicas for a load."""

from __future__ import annotations

import argparse
import json
import shlex
import sys
from dataclasses import asdict, replace
from textwrap import wrap
from typing import TYPE_CHECKING, Any

from rondo.base.errors import ConfigError
from rondo.base.storage.home import models_dir
from rondo.base.storage.paths import path_of
from rondo.base.units import GIB
from rondo.cli.options.arguments import VerbParser, positive_count
from rondo.cli.options.help import columns

if TYPE_CHECKING:
    from pathlib import Path

    from rondo.models import ModelConfig
    from rondo.plan.cost.cluster import Cluster, Gpu
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
GPUS, LENGTH, TOKENS_PER_STEP = 8, 8192, 2**22
OPTIMIZERS = {"adamw": 12, "muon": 8}


def run(argv: list[str]) -> int:
    given = _parser().parse_args(argv)
    if given.serve and given.dry_run:
        raise ConfigError("--dry-run builds a plan for training; leave --serve out.", param="dry_run")
    if given.serve and given.write:
        raise ConfigError("--write writes a plan for training; leave --serve out.", param="write")
    shape = _shape(given)
    if given.lora is not None or given.qlora is not None:
        from rondo.cli.subcommands import plan_adapter

        return plan_adapter.run(given, shape, _trained_model(given))
    cluster = _cluster(given)
    return _serve(given, shape, cluster) if given.serve else _train(given, shape, cluster)


def _train(given: argparse.Namespace, shape: ModelShape, cluster: Cluster) -> int:
    from rondo.plan.choice.planning import plan
    from rondo.plan.choice.search import PINS, TRAINER, PlanningTask
    from rondo.plan.cost.layout import StepBatch
    from rondo.plan.job import command, config, toml
    from rondo.plan.report import as_object, lines

    tokens, length = given.tokens_per_step or TOKENS_PER_STEP, given.seq or LENGTH
    if tokens % length:
        raise ConfigError(
            f"--tokens-per-step {tokens} does not divide into sequences of {length}.",
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
    batch = StepBatch(tokens // length, length)
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
    print(json.dumps(said) if given.json else "\n".join(_fitted(words)))
    return 0 if fits else 1


def _fitted(lines: list[str]) -> list[str]:
    """The lines on a terminal: reasons are wrapped, and the command continues with backslashes."""
    if not sys.stdout.isatty():
        return lines
    found: list[str] = []
    for line in lines:
        is_command, width = line.startswith("  torchrun "), columns()
        if len(line) <= width or not (is_command or line.startswith("- ")):
            found.append(line)
            continue
        indent, mark = ("    ", " \\") if is_command else ("  ", "")
        wrapped = wrap(
            line, width - len(mark), subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
        )
        found += [f"{each}{mark}" for each in wrapped[:-1]] + wrapped[-1:]
    return found


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
    from rondo.plan.sizes.hf import hf_of

    path = _path(given)
    sizes = {key: getattr(given, key) for key in SIZES if getattr(given, key) is not None}
    return parse(_config(path) | sizes if path is not None else hf_of(shape))


def _serve(given: argparse.Namespace, shape: ModelShape, cluster: Cluster) -> int:
    from rondo.base.units import human_count
    from rondo.plan.report import serving_lines, serving_object
    from rondo.plan.serving import Load, plan_serving

    load = Load(given.rate, given.prompt, given.answer, given.ttft, given.tpot, given.shared)
    served = plan_serving(shape, cluster, load, tp=given.tp, weights=given.weights, cache=given.kv_cache)
    title = (
        f"{shape.name}: {human_count(shape.parameters)} parameters on {cluster.gpus} x {cluster.gpu.name}, "
        f"{cluster.gpu.memory / GIB:.0f} GiB each"
    )
    said = [json.dumps(serving_object(served, load))] if given.json else serving_lines(served, load, title)
    print("\n".join(said))
    return 0 if served.best is not None else 1


def _shape(given: argparse.Namespace) -> ModelShape:
    """A known name, a name from `rondo model list`, a folder, a config.json, a GGUF file, or a name of the Hugging Face
    Hub; single sizes by flags."""
    from rondo.hub.cache import repo_of_snapshot
    from rondo.plan.sizes.hf import shape_of
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
    return shape_of(_config(path) | sizes, name or "the model")


def _config(path: Path) -> dict[str, Any]:
    """The config.json at `path` or in that folder, or the one that a GGUF file amounts to."""
    from rondo.base.storage.gguf import gguf_in
    from rondo.models.files import headers
    from rondo.plan.sizes.hf import read_config

    file = gguf_in(path)
    return read_config(path) if file is None else headers.read_config(file)


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
    from rondo.plan.cost.cluster import Cluster

    return Cluster(gpu_of_flags(given), given.gpus or GPUS)


def gpu_of_flags(given: argparse.Namespace) -> Gpu:
    from rondo.plan.cost.cluster import gpu_of

    figures = ("memory", "peak", "bandwidth", "link", "network", "per_node", "host_memory")
    return gpu_of(given.gpu, **{name: getattr(given, name) for name in figures})


ESSENTIAL = (
    *(
        "--serve",
        "--dry-run",
        "--json",
        "--write",
        "--gpu",
        "--gpus",
        "--tokens-per-step",
        "--seq",
        "--precision",
    ),
    *("--rate", "--prompt", "--answer", "--lora", "--qlora"),
)


def _parser() -> VerbParser:
    parser = VerbParser(
        "rondo plan",
        "Compute a layout of a model over a cluster, with its memory, traffic and step time; with --serve, the number "
        "of replicas for a load; with --lora or --qlora, whether that training fits one device. The exit code is 1 if "
        "nothing fits.",
        essential=ESSENTIAL,
    )
    parser.add_argument(
        "model",
        metavar="MODEL",
        nargs="?",
        help="a known name such as llama-3-8b, a name from `rondo model list`, a folder, a config.json, or "
        "ORG/NAME[@REVISION] of the Hugging Face Hub, of which only the config is downloaded",
    )
    parser.add_argument("--serve", action="store_true", help="plan serving instead of training")
    parser.add_argument(
        "--dry-run",
        action="store_true",
        help="build the plan at full size on simulated ranks, and check shapes and memory",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument(
        "--write", metavar="FILE", help="write the plan as a config of `rondo train`, in TOML"
    )
    _hardware(parser)
    _training(parser)
    _serving(parser)
    _sizes(parser)
    return parser


def _sizes(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("model sizes, without a config.json or instead of its values")
    for key, flag in SIZES.items():
        group.add_argument(flag, dest=key, type=positive_count, metavar="N", help=f"config.json's {key}")


def _hardware(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("cluster")
    group.add_argument(
        "--gpu",
        default="h100",
        metavar="NAME",
        help="h100, a100, h200, b200, gb300, rtx-4090, ..., and `here` with --lora or --qlora (h100)",
    )
    group.add_argument(
        "--gpus", type=positive_count, metavar="N", help="number of GPUs (8; 1 with --lora or --qlora)"
    )
    group.add_argument(
        "--per-node", type=positive_count, metavar="N", help="GPUs per node, behind fast links"
    )
    group.add_argument("--memory", type=_figure, metavar="GIB", help="memory of one GPU")
    group.add_argument("--peak", type=_figure, metavar="TFLOPS", help="dense bf16 peak of one GPU")
    group.add_argument("--bandwidth", type=_figure, metavar="TB/S", help="memory bandwidth of one GPU")
    group.add_argument(
        "--link", type=_figure, metavar="GB/S", help="bandwidth within a node, per GPU and direction"
    )
    group.add_argument("--host-memory", type=_figure, metavar="GIB", help="host memory per GPU")
    group.add_argument(
        "--network", type=_figure, metavar="GB/S", help="bandwidth between nodes, per GPU and direction"
    )


def _training(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("training")
    group.add_argument(
        "--tokens-per-step", type=positive_count, metavar="N", help="batch size in tokens (4m)"
    )
    group.add_argument("--seq", type=positive_count, metavar="N", help="tokens per sequence (8192)")
    group.add_argument(
        "--profile",
        choices=("cost", "classic"),
        default="cost",
        help="cost: the fastest layout by the cost model; classic: rules of thumb",
    )
    group.add_argument("--precision", choices=("bf16", "fp16", "fp8"), default="bf16", help="compute type")
    group.add_argument("--optimizer", choices=tuple(OPTIMIZERS), default="adamw", help="optimizer")
    group.add_argument(
        "--loss",
        choices=("plain", "chunked"),
        default="chunked",
        help="chunked computes the head and its loss in parts",
    )
    adapters = parser.add_argument_group(
        "adapters: does the training fit one device?"
    ).add_mutually_exclusive_group()
    for flag, text in (
        ("--lora", "LoRA over weights in 16 bits"),
        ("--qlora", "LoRA over weights in 4 bits"),
    ):
        adapters.add_argument(
            flag, type=positive_count, nargs="?", const=16, metavar="RANK", help=f"{text}, of this rank (16)"
        )
    group.add_argument(
        "--swiglu",
        choices=("kernel", "kept"),
        default="kernel",
        help="kernel recomputes the activation in the backward pass, kept stores it",
    )
    fixed = parser.add_argument_group("choices that the search must not change")
    for name, text in FIXED.items():
        fixed.add_argument(f"--{name}", type=positive_count, metavar="N", help=text)
    fixed.add_argument("--cp-method", choices=("ulysses", "ring"), help="context parallelism")
    fixed.add_argument(
        "--schedule", choices=("1f1b", "gpipe", "interleaved", "zero-bubble"), help="pipeline schedule"
    )
    fixed.add_argument("--zero", type=int, choices=(0, 1, 2, 3), help="ZeRO stage")
    fixed.add_argument(
        "--checkpointing", choices=("none", "selective", "full"), help="activation checkpointing"
    )
    fixed.add_argument("--offload", choices=("none", "optimizer", "all"), help="offload to host memory")


FIXED = {
    "dp": "data-parallel ranks",
    "tp": "tensor-parallel ranks",
    "pp": "pipeline stages",
    "cp": "context-parallel ranks",
    "ep": "expert-parallel ranks",
    "virtual": "model chunks per pipeline stage",
    "microbatch": "sequences per microbatch",
}


def _serving(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("serving")
    group.add_argument("--rate", type=_figure, default=1.0, metavar="R", help="requests per second (1)")
    group.add_argument(
        "--prompt", type=positive_count, default=1024, metavar="N", help="prompt tokens (1024)"
    )
    group.add_argument("--answer", type=positive_count, default=256, metavar="N", help="answer tokens (256)")
    group.add_argument("--ttft", type=_figure, metavar="SECONDS", help="limit of the time to the first token")
    group.add_argument("--tpot", type=_figure, metavar="SECONDS", help="limit of the time per output token")
    group.add_argument(
        "--shared", type=float, default=0.0, metavar="SHARE", help="share of prompts in the prefix cache (0)"
    )
    group.add_argument("--weights", choices=("bf16", "fp8", "int8", "int4"), help="type of the weights")
    group.add_argument("--kv-cache", choices=("bf16", "fp8"), help="type of the KV cache")


def _figure(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < 1e12:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number above 0")
    return value
