"""`rondo bench throughput` and `rondo bench latency`: a model in this process, without a server; vLLM's lines."""

from __future__ import annotations

import argparse
import random
import time
from typing import TYPE_CHECKING, Any

from rondo.cli.options.arguments import VerbParser
from rondo.cli.options.flags import FLAGS
from rondo.cli.options.short import read_short
from rondo.cli.subcommands import bench_types as types
from rondo.client.bench.figures import percentile

if TYPE_CHECKING:
    from rondo.client.types import SamplingParams
    from rondo.engine.entrypoints.llm import LLM

PERCENTILES = (10, 25, 50, 75, 90, 99)
ENGINE_FLAGS = (
    *("--dtype", "--max-model-len", "--max-num-seqs", "--max-num-batched-tokens", "--kv-cache-dtype"),
    *("--kv-cache-memory-bytes", "--block-size", "--enable-prefix-caching", "--no-enable-prefix-caching"),
    *("--tensor-parallel-size", "--device", "--threads", "--speculative-config"),
)


def throughput(argv: list[str]) -> int:
    parser = _parser("throughput", "Generate for many prompts at once, as fast as the model can.", 1024, 128)
    parser.add_argument("--num-prompts", type=types.positive, default=1000, help="how many prompts (1000)")
    loaded = _load(parser, argv)
    if loaded is None:
        return 0
    given, llm = loaded
    prompts = _prompts(llm, given.num_prompts, given.input_len, given.seed)
    llm.generate(prompts[:1], _params(given, min(given.output_len, 8)))
    started = time.perf_counter()
    outputs = llm.generate(prompts, _params(given, given.output_len))
    seconds = time.perf_counter() - started
    asked = sum(len(output.prompt_token_ids) for output in outputs)
    made = sum(len(sample.token_ids) for output in outputs for sample in output.outputs)
    print(
        f"Throughput: {len(prompts) / seconds:.2f} requests/s, {(asked + made) / seconds:.2f} total tokens/s, "
        f"{made / seconds:.2f} output tokens/s"
    )
    print(f"Total num prompt tokens:  {asked}")
    print(f"Total num output tokens:  {made}")
    result = {
        "elapsed_time": seconds,
        "num_requests": len(prompts),
        "total_num_tokens": asked + made,
        "requests_per_second": len(prompts) / seconds,
        "tokens_per_second": (asked + made) / seconds,
    }
    _keep(given, result)
    return 0


def latency(argv: list[str]) -> int:
    parser = _parser("latency", "Generate for one batch, again and again.", 32, 128)
    parser.add_argument("--batch-size", type=types.positive, default=8, help="prompts at a time (8)")
    parser.add_argument(
        "--num-iters-warmup", type=types.natural, default=10, help="rounds before the clock starts (10)"
    )
    parser.add_argument("--num-iters", type=types.positive, default=30, help="rounds that count (30)")
    loaded = _load(parser, argv)
    if loaded is None:
        return 0
    given, llm = loaded
    prompts = _prompts(llm, given.batch_size, given.input_len, given.seed)
    seconds = []
    for _ in range(given.num_iters_warmup + given.num_iters):
        llm.reset_prefix_cache()
        started = time.perf_counter()
        llm.generate(prompts, _params(given, given.output_len))
        seconds.append(time.perf_counter() - started)
    counted = sorted(seconds[given.num_iters_warmup :])
    average = sum(counted) / len(counted)
    found = {str(at): percentile(counted, at) for at in PERCENTILES}
    print(f"Avg latency: {average} seconds")
    for at, value in found.items():
        print(f"{at}% percentile latency: {value} seconds")
    _keep(given, {"avg_latency": average, "latencies": counted, "percentiles": found})
    return 0


def _parser(verb: str, text: str, input_len: int, output_len: int) -> VerbParser:
    parser = VerbParser(f"rondo bench {verb}", text)
    parser.usage = f"rondo bench {verb} MODEL [flags]"
    parser.add_argument("model", help="a model's name or folder, or a job's name or hash")
    parser.add_argument(
        "--input-len", type=types.positive, default=input_len, help=f"tokens of a prompt ({input_len})"
    )
    parser.add_argument(
        "--output-len", type=types.positive, default=output_len, help=f"tokens of an answer ({output_len})"
    )
    parser.add_argument("--n", type=types.positive, default=1, help="samples of each prompt (1)")
    parser.add_argument("--seed", type=types.whole, default=0, help="of the prompts (0)")
    parser.add_argument("--output-json", type=types.output, metavar="FILE", help="the figures as JSON")
    return parser


def _load(parser: VerbParser, argv: list[str]) -> tuple[argparse.Namespace, LLM] | None:
    """None where help was asked for, and given."""
    command = read_short(parser, [flag for flag in FLAGS if flag in ENGINE_FLAGS], argv)
    if command is None:
        return None
    given = parser.parse_args(command.rest)

    from rondo.engine.entrypoints.llm import LLM

    return given, LLM(given.model, config=command.config.tree.engine)


def _prompts(llm: LLM, count: int, length: int, seed: int) -> list[list[int]]:
    """Tokens at random: nothing is shared, and nothing repeats."""
    rng = random.Random(seed)
    vocabulary = llm.core.model.config.vocab_size
    return [rng.choices(range(vocabulary), k=length) for _ in range(count)]


def _params(given: argparse.Namespace, length: int) -> SamplingParams:
    from rondo.client.types import SamplingParams

    return SamplingParams(max_tokens=length, n=given.n, seed=0, ignore_eos=True)


def _keep(given: argparse.Namespace, result: dict[str, Any]) -> None:
    if given.output_json is not None:
        from rondo.base.storage.files import write_json

        write_json(given.output_json, result)
