"""Serving over HTTP beside the peers: output tokens a second and latencies of 16 requests at a time, 128 tokens in and
128 out, on a model of 4M parameters in fp32 or (`--model-size 0.6b`) of Qwen3 0.6B's shape in bf16.

Each side is an OpenAI server on loopback with the same weights and threads: `rondo serve`; `vllm serve`, compiled;
llama.cpp's `llama-server` with a place for each request; transformers' `generate` in batches of 16 behind a minimal
server of our own. One client, that of `rondo bench serve`, asks all of them for greedy answers of full length to the
same random prompts, new ones each round, with the prefix caches off. Sides take turns; those that wait are stopped.
Where weights are in bf16 but the processor has no instructions for it, vLLM and transformers, which would emulate
them at a hundredth of the speed, take the same weights in fp32.

Before it is timed, each gives greedy tokens for four prompts. In fp32 they must be ours. In bf16 each side rounds at
other places, so near ties fall differently and answers part: then it is said how many of the first tokens agree.

`--sweep RATES` asks at these rates (Poisson arrivals) instead, as many as it takes at a time, for `--seconds` each;
`--plot FILE.png` draws it. `--keep DIR` keeps the models there, and takes those that it finds.
"""

import argparse
import asyncio
import random
import signal
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import torch

import peers
import servers
from common import Report, arguments, median, say
from rondo.client.bench.arrivals import arrival_times
from rondo.client.bench.figures import Figures, figures
from rondo.client.bench.load import TargetServer, run_load
from rondo.client.bench.plot import need_plots, save_sweeps
from rondo.client.bench.prompts import LengthDistribution, PromptDataset, make_prompts
from rondo.client.bench.report import LoadRun
from rondo.client.bench.wire import ServerAddress
from rondo.ops.gemm.linear import cpu_multiplies_bf16
from servers import Served, Setting
from small_model import TINY, write_qwen3_06b, write_small_model

TOKENS, BATCH, MANY = 128, 16, 64
"""In and out; at a time; and most at a time under a rate."""
EMULATE = ("vllm", "transformers")
"""Who computes in bf16 where the weights are, with instructions or without."""
FORGIVEN = 20
"""A peer may lose one answer in so many: llama.cpp's server drops a connection where random weights write no UTF-8."""
HIGHER = "output tokens/s"
METRICS = ("ttft", "tpot", "itl")


class Sides:
    """Those that run, and why the others do not."""

    def __init__(self, names: Sequence[str], given: Setting, stack: ExitStack) -> None:
        self.served: dict[str, Served] = {}
        self.notes: list[str] = []
        for name in ["rondo", *names]:
            own = given
            if given.dtype == "bfloat16" and name in EMULATE and not cpu_multiplies_bf16():
                own = replace(given, dtype="float32")
                self.notes.append(f"{name} computes in fp32: this processor has no instructions for bf16")
            say(f"{name} starts")
            try:
                server = stack.enter_context(Served(name, servers.SIDES[name](own)))
                self._compare(server, given.dtype == "float32")
                self.served[name] = server
            except peers.Absent as reason:
                if name == "rondo":
                    raise SystemExit(str(reason)) from None
                self.notes.append(str(reason))

    def _compare(self, server: Served, exact: bool) -> None:
        rng = random.Random(1)
        prompts = [rng.choices(range(10, 250), k=24) for _ in range(4)]
        with server.awake():
            tokens = [server.greedy(prompt, 8) for prompt in prompts]
        if server.name == "rondo":
            self._greedy = tokens
            return
        if exact and tokens != self._greedy:
            raise peers.Absent(
                f"{server.name} gives other greedy tokens than ours: {tokens} instead of {self._greedy}"
            )
        if not exact:
            agreed = sum(agreement(own, their) for own, their in zip(self._greedy, tokens, strict=True))
            self.notes.append(f"{server.name}: {agreed} of the first 32 greedy tokens are ours")


def agreement(own: list[int], their: list[int]) -> int:
    """Up to where they part."""
    return next((i for i, pair in enumerate(zip(own, their, strict=True)) if pair[0] != pair[1]), len(own))


def load(server: Served, requests: int, length: int, seed: int, rate: float = float("inf")) -> LoadRun:
    limit = BATCH if rate == float("inf") else None
    asked = make_prompts(
        PromptDataset("random", lengths=LengthDistribution(length, length)), requests, False, seed
    )
    times = arrival_times(requests, rate, 1.0, seed)
    target = TargetServer(
        ServerAddress.of(server.url), "completions", servers.MODEL, ignore_eos=True, extra={"temperature": 0}
    )
    with server.awake():
        outcomes, seconds = asyncio.run(run_load(target, asked, times, limit))
    found = figures(outcomes, seconds)
    lost = requests - found.completed
    if lost > (0 if server.name == "rondo" else max(1, requests // FORGIVEN)):
        errors = {outcome.error for outcome in outcomes if outcome.error}
        raise SystemExit(f"{server.name}: {found.completed} of {requests} answers are whole: {errors}")
    if lost:
        say(f"{server.name}: {lost} of {requests} answers broke off, and are not counted")
    return LoadRun(rate, limit, outcomes, found)


def table(found: Figures) -> dict[str, float]:
    shown = {HIGHER: found.output_throughput}
    for metric in METRICS:
        spread = found.spreads[metric]
        shown |= {
            f"{metric.upper()} median, ms": spread.median,
            f"{metric.upper()} p99, ms": spread.percentiles[99],
        }
    return shown


def at_once(report: Report, sides: Sides, rounds: int, requests: int, length: int) -> None:
    runs: dict[str, list[dict[str, float]]] = {name: [] for name in sides.served}
    for seed in range(rounds):
        for name, server in sides.served.items():
            found = table(load(server, requests, length, seed + 1).figures)
            say(f"round {seed + 1}: {name}: {found[HIGHER]:.1f} {HIGHER}")
            runs[name].append(found)
    medians = {
        name: {figure: median([each[figure] for each in found]) for figure in found[0]}
        for name, found in runs.items()
    }
    report.ours = medians.pop("rondo")
    for name, found in medians.items():
        report.peers[name] = dict(found)
        for figure, theirs in found.items():
            ours = report.ours[figure]
            report.ratios[f"{figure}, rondo and {name}"] = (
                ours / theirs if figure == HIGHER else theirs / ours
            )
    spread = [round(run[HIGHER], 1) for run in runs["rondo"]]
    report.notes.append(f"rondo's {HIGHER} by round: {spread}")


def sweep(
    report: Report, sides: Sides, rates: list[float], seconds: float, length: int, plot: Path | None
) -> None:
    runs: dict[str, list[LoadRun]] = {name: [] for name in sides.served}
    for rate in rates:
        for name, server in sides.served.items():
            say(f"{rate:g} requests a second: {name}")
            runs[name].append(load(server, max(BATCH, round(rate * seconds)), length, 1, rate))
    for name, found in runs.items():
        shown = {
            f"{run.rate:g} requests/s: {figure}": value
            for run in found
            for figure, value in table(run.figures).items()
            if "ITL" not in figure
        }
        if name == "rondo":
            report.ours = shown
        else:
            report.peers[name] = dict(shown)
    if plot is not None:
        save_sweeps(runs, plot)


def main() -> None:
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--model-size", choices=("4m", "0.6b"), default="4m")
    parser.add_argument("--dtype", choices=("float32", "bfloat16"))
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--requests", type=int)
    parser.add_argument("--keep", type=Path)
    parser.add_argument("--sweep", type=lambda text: [float(part) for part in text.split(",")])
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--plot", type=Path)
    own, rest = parser.parse_known_args()
    names = [name for name in servers.SIDES if name != "rondo"]
    options = arguments(__doc__.splitlines()[0], argv=rest, **dict.fromkeys(names, ""))
    if own.plot is not None:
        need_plots(own.plot)
    large = own.model_size == "0.6b"
    dtype = own.dtype or ("bfloat16" if large else "float32")
    length = 16 if options.quick else TOKENS
    report = Report("serving")
    with tempfile.TemporaryDirectory() as root, ExitStack() as stack:
        folder = (own.keep or Path(root)) / ("tiny" if options.quick else own.model_size)
        if not folder.exists():
            write_model(folder, options.quick, large)
        setting = Setting(folder, max(2 * length, 64) + 16, MANY if own.sweep else BATCH, dtype)
        sides = Sides(options.peers, setting, stack)
        for server in sides.served.values():
            load(server, BATCH, 8, seed=0)
        if own.sweep:
            sweep(report, sides, own.sweep, own.seconds, length, own.plot)
        else:
            rounds = own.rounds or (1 if options.quick else 3)
            at_once(
                report,
                sides,
                rounds,
                own.requests or (BATCH if large or options.quick else 4 * BATCH),
                length,
            )
        report.notes += sides.notes
        report.peers |= {name: {"absent": "absent"} for name in options.peers if name not in sides.served}
    report.notes.append(f"{own.model_size}, {dtype}, {length} tokens in and out")
    report.show(options.json)


def write_model(folder: Path, tiny: bool, large: bool) -> None:
    say("writes the model")
    if tiny:
        write_small_model(folder, **TINY)
    elif large:
        write_qwen3_06b(folder)
    else:
        write_small_model(folder)


if __name__ == "__main__":
    torch.set_num_threads(1)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that the servers end too
    main()
