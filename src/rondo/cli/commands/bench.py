"""`rondo bench serve|throughput|latency`: what a server, or a model in this process, can do."""

from __future__ import annotations

import argparse
import asyncio
import math
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rondo.base.errors import ConfigError, RondoError
from rondo.cli.options.arguments import VerbParser
from rondo.cli.options.verbs import run_verb
from rondo.cli.subcommands import bench_types as types

if TYPE_CHECKING:
    from rondo.client.bench.arrivals import Ramp
    from rondo.client.bench.load import TargetServer
    from rondo.client.bench.prompts import PromptDataset
    from rondo.client.bench.report import LoadRun

USAGE = """usage: rondo bench VERB [options]

  serve       load an OpenAI server, ours or another, and print its latencies and throughput
  throughput  generate for many prompts at once on a model in this process
  latency     generate for one batch, again and again

  rondo bench VERB --help   what a verb takes"""


def run(argv: list[str]) -> int:
    return run_verb("rondo bench", VERBS, USAGE, argv)


def _throughput(argv: list[str]) -> int:
    from rondo.cli.subcommands.bench_offline import throughput

    return throughput(argv)


def _latency(argv: list[str]) -> int:
    from rondo.cli.subcommands.bench_offline import latency

    return latency(argv)


def serve(argv: list[str]) -> int:
    given = _parser().parse_args(argv)
    if given.plot is not None:
        from rondo.client.bench.plot import need_plots

        need_plots(given.plot)
    runs, about = asyncio.run(_load(given))
    if len(runs) > 1:
        from rondo.client.bench.report import table

        print("\n".join(table(runs)))
    _keep(given, runs, about)
    return 0 if all(each.figures.completed for each in runs) else RondoError.exit_code


ESSENTIAL = (
    *(
        "--base-url",
        "--model",
        "--endpoint",
        "--api-key",
        "--num-prompts",
        "--request-rate",
        "--max-concurrency",
    ),
    *("--sweep", "--dataset", "--input-len", "--output-len", "--save-result", "--plot"),
)


def _parser() -> argparse.ArgumentParser:
    parser = VerbParser(
        "rondo bench serve", "Load an OpenAI server and print vLLM's figures of it.", essential=ESSENTIAL
    )
    add = parser.add_argument_group("server").add_argument
    add(
        "--base-url",
        default=None,
        help="where it is (RONDO_BASE_URL, else port 8000 or 8001 of this machine)",
    )
    add("--model", help="the model to ask for (the first that the server names)")
    add("--endpoint", default="completions", choices=["completions", "chat"], help="(completions)")
    add("--api-key", help="API key (default: RONDO_API_KEY, else OPENAI_API_KEY)")
    add("--ignore-eos", action="store_true", help="answers go on to their full length")
    add(
        "--ready-check-timeout-sec",
        type=types.seconds,
        default=0.0,
        help="wait so long for a first answer (0: do not)",
    )
    add(
        "--extra-body",
        type=types.json_object,
        default={},
        metavar="JSON",
        help="more fields: '{\"temperature\": 0}'",
    )
    add = parser.add_argument_group("load").add_argument
    add("--num-prompts", type=types.positive, default=1000, help="how many requests (1000)")
    add("--request-rate", type=types.rate, default=math.inf, help="requests a second; inf: all at once (inf)")
    add(
        "--burstiness",
        type=types.rate,
        default=1.0,
        help="1: Poisson arrivals; less: in bursts; inf: evenly (1)",
    )
    add("--ramp-up-strategy", choices=["linear", "exponential"], help="a rate that changes over the requests")
    add("--ramp-up-start-rps", type=types.rate, help="from this rate")
    add("--ramp-up-end-rps", type=types.rate, help="to this one")
    add("--max-concurrency", type=types.positive, help="most requests under way at a time")
    add("--sweep", type=types.rates, metavar="RATES", help="one run for each rate: 1,2,4,inf")
    add("--num-warmups", type=types.natural, default=0, help="requests before the clock starts (0)")
    add(
        "--seed",
        type=types.whole,
        default=0,
        help="equal seeds ask the same at the same times; each rate of a sweep anew (0)",
    )
    add = parser.add_argument_group("prompts").add_argument
    add(
        *("--dataset", "--dataset-name"),
        default="random",
        choices=["random", "prefix_repetition", "sharegpt", "sonnet", "custom"],
        help="(random)",
    )
    add(
        "--dataset-path",
        type=Path,
        help="sharegpt's file, a text for sonnet, JSON lines of prompts for custom",
    )
    add("--input-len", type=types.positive, help="tokens of a prompt, of any dataset that is made")
    add("--output-len", type=types.positive, help="tokens of an answer, of any dataset")
    add("--random-input-len", type=types.positive, default=1024, help="tokens of a prompt (1024)")
    add("--random-output-len", type=types.positive, default=128, help="tokens of an answer (128)")
    add("--random-range-ratio", type=types.share, default=0.0, help="lengths vary by this share of them (0)")
    add("--random-prefix-len", type=types.natural, default=0, help="tokens with which all prompts begin (0)")
    add("--prefix-repetition-prefix-len", type=types.positive, default=256, help="(256)")
    add("--prefix-repetition-suffix-len", type=types.positive, default=256, help="(256)")
    add("--prefix-repetition-num-prefixes", type=types.positive, default=10, help="(10)")
    add("--prefix-repetition-output-len", type=types.positive, default=128, help="(128)")
    add(
        "--sonnet-input-len",
        type=types.positive,
        default=550,
        help="about so many tokens of a text's lines (550)",
    )
    add("--sonnet-output-len", type=types.positive, default=150, help="(150)")
    add("--sonnet-prefix-len", type=types.natural, default=200, help="of them the same in all prompts (200)")
    add = parser.add_argument_group("result").add_argument
    add("--percentile-metrics", type=types.metrics, default="ttft,tpot,itl,e2el", help="(ttft,tpot,itl,e2el)")
    add("--metric-percentiles", type=types.percentiles, default="99", help="(99)")
    add(
        "--goodput",
        nargs="+",
        type=types.limit,
        default=[],
        metavar="NAME:MS",
        help="ttft:200 tpot:50 e2el:1000",
    )
    add("--save-result", type=types.output, metavar="FILE", help="the figures as JSON; of a sweep, a list")
    add("--save-detailed", action="store_true", help="each request's figures too")
    add("--plot", type=types.output, metavar="FILE.png", help="a picture (needs rondo-lab[plot])")
    return parser


async def _load(given: argparse.Namespace) -> tuple[list[LoadRun], dict[str, Any]]:
    from rondo.client.bench.arrivals import arrival_times, ramped_times
    from rondo.client.bench.figures import figures
    from rondo.client.bench.load import run_load
    from rondo.client.bench.prompts import make_prompts
    from rondo.client.bench.report import LoadRun, failures, lines

    ramp = _ramp(given)
    chat, dataset = given.endpoint == "chat", _dataset(given)
    rates = given.sweep or [given.request_rate]
    asked = [make_prompts(dataset, given.num_prompts, chat, given.seed + i) for i in range(len(rates))]
    server = await _server(given)
    if given.num_warmups:
        first = make_prompts(dataset, max(given.num_warmups, given.prefix_repetition_num_prefixes), chat, -1)
        await run_load(server, first[: given.num_warmups], [0.0] * given.num_warmups, given.max_concurrency)
    runs = []
    for rate, asks in zip(rates, asked, strict=True):
        if ramp is None:
            times = arrival_times(len(asks), rate, given.burstiness, given.seed)
        else:
            times = ramped_times(len(asks), ramp, given.burstiness, given.seed)
        outcomes, seconds = await run_load(server, asks, times, given.max_concurrency, _progress(len(asks)))
        found = figures(outcomes, seconds, given.metric_percentiles, dict(given.goodput))
        runs.append(LoadRun(rate, given.max_concurrency, outcomes, found))
        print("\n".join(lines(runs[-1], given.percentile_metrics)), flush=True)
        for failure in failures(runs[-1]):
            print(failure, file=sys.stderr)
    about = {
        "date": time.strftime("%Y%m%d-%H%M%S"),
        "backend": "openai-chat" if chat else "openai",
        "base_url": str(server.address),
        "model_id": server.model,
        "num_prompts": given.num_prompts,
        "dataset": given.dataset,
        "burstiness": given.burstiness if math.isfinite(given.burstiness) else "inf",
        "seed": given.seed,
    }
    if ramp is not None:
        about["ramp_up"] = {"strategy": given.ramp_up_strategy, "start_rps": ramp.start, "end_rps": ramp.end}
    return runs, about


async def _server(given: argparse.Namespace) -> TargetServer:
    from dataclasses import replace

    from rondo.cli.chat.source import running_server
    from rondo.client.bench.load import TargetServer, first_model, wait_until_ready
    from rondo.client.bench.prompts import Ask
    from rondo.client.bench.wire import ServerAddress
    from rondo.client.http import DEFAULT_URL

    url = given.base_url or running_server() or DEFAULT_URL
    key = given.api_key or os.environ.get("RONDO_API_KEY") or os.environ.get("OPENAI_API_KEY")
    address = ServerAddress.of(url)
    server = TargetServer(address, given.endpoint, given.model or "", key, given.ignore_eos, given.extra_body)
    if given.ready_check_timeout_sec > 0:
        words = Ask("a" if given.endpoint == "chat" else [10], 1)
        return await wait_until_ready(server, words, given.ready_check_timeout_sec)
    return server if given.model else replace(server, model=await first_model(server))


def _dataset(given: argparse.Namespace) -> PromptDataset:
    from rondo.client.bench.prompts import LengthDistribution, LinePrompts, PromptDataset, Repeated

    size, output = given.input_len, given.output_len
    if size is not None and given.dataset not in ("random", "sonnet"):
        raise ConfigError(f"--input-len does not apply to the dataset {given.dataset}.", param="input_len")
    lengths = LengthDistribution(
        size or given.random_input_len,
        output or given.random_output_len,
        given.random_range_ratio,
        given.random_prefix_len,
    )
    repeated = Repeated(
        given.prefix_repetition_prefix_len,
        given.prefix_repetition_suffix_len,
        given.prefix_repetition_num_prefixes,
        output or given.prefix_repetition_output_len,
    )
    text = LinePrompts(
        size or given.sonnet_input_len, output or given.sonnet_output_len, given.sonnet_prefix_len
    )
    return PromptDataset(given.dataset, given.dataset_path, lengths, repeated, text, output)


def _ramp(given: argparse.Namespace) -> Ramp | None:
    """The whole of it or nothing, and then no other rate."""
    from rondo.client.bench.arrivals import Ramp

    parts = (given.ramp_up_strategy, given.ramp_up_start_rps, given.ramp_up_end_rps)
    if parts == (None, None, None):
        return None
    if None in parts:
        raise ConfigError(
            "A ramp needs --ramp-up-strategy, --ramp-up-start-rps and --ramp-up-end-rps.", param="ramp_up"
        )
    if given.sweep or math.isfinite(given.request_rate):
        raise ConfigError("A ramp sets the rate: leave --request-rate and --sweep out.", param="ramp_up")
    return Ramp(given.ramp_up_strategy == "exponential", *parts[1:])


def _progress(count: int) -> Any:
    """A line that counts, for who looks."""
    if not sys.stderr.isatty():
        return lambda done: None

    def show(done: int) -> None:
        print(f"\r{done} of {count}", end="\n" if done == count else "", file=sys.stderr, flush=True)

    return show


def _keep(given: argparse.Namespace, runs: Sequence[LoadRun], about: dict[str, Any]) -> None:
    if given.save_result is not None:
        from rondo.base.storage.files import write_json
        from rondo.client.bench.report import as_json

        kept = [as_json(each, about, given.save_detailed) for each in runs]
        write_json(given.save_result, kept if given.sweep else kept[0])
    if given.plot is not None:
        from rondo.client.bench.plot import save_plot

        save_plot(runs, given.plot)


VERBS = {"serve": serve, "throughput": _throughput, "latency": _latency}
