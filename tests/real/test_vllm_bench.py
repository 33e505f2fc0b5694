"""`vllm bench serve`'s own arithmetic gives our figures for the same requests."""

import json
import random
from pathlib import Path

import pytest

from rondo.client.bench.figures import figures
from rondo.client.bench.load import RequestOutcome
from rondo.engine.config import EngineConfig
from rondo.server.config import ServerConfig
from server.running import start
from support.peers import run_peer
from support.vllm import SETTINGS, write_folders

pytestmark = [pytest.mark.real, pytest.mark.timeout(600)]

THEIRS = """
import dataclasses, json, sys
from vllm.benchmarks.lib.endpoint_request_func import RequestFuncOutput
from vllm.benchmarks.serve import calculate_metrics
given = json.load(sys.stdin)
outputs = [RequestFuncOutput(**each) for each in given["outputs"]]
found, _ = calculate_metrics([], outputs, given["seconds"], None, [50, 90, 99.9], given["goodput"])
print(json.dumps(dataclasses.asdict(found), default=float))
"""
CLIENT = """
from vllm.benchmarks.serve import add_cli_args, main
from vllm.utils.argparse_utils import FlexibleArgumentParser
parser = FlexibleArgumentParser()
add_cli_args(parser)
main(parser.parse_args())
"""
"""`vllm bench serve`, without the command, which wants vLLM to be installed by a package manager."""
GOODPUT = {"ttft": 300.0, "tpot": 40.0, "e2el": 2000.0}


def random_outcomes(count: int) -> list[RequestOutcome]:
    rng = random.Random(0)
    made = []
    for _ in range(count):
        gaps = [rng.expovariate(30) for _ in range(rng.randrange(60))]
        first = rng.expovariate(5)
        tokens = 1 + len(gaps) + rng.randrange(5) * bool(gaps)
        made.append(
            RequestOutcome(rng.uniform(50, 60), first, gaps, first + sum(gaps), rng.randrange(1, 99), tokens)
        )
    return made


def test_figures_are_vllms() -> None:
    outcomes = random_outcomes(200)
    outputs = [
        {
            "success": True,
            "start_time": each.started,
            "ttft": each.first,
            "itl": each.gaps,
            "latency": each.latency,
            "prompt_len": each.prompt_tokens,
            "output_tokens": each.output_tokens,
        }
        for each in outcomes
    ]
    outputs.append({"success": False, "error": "gone"})
    asked = {"outputs": outputs, "seconds": 12.5, "goodput": GOODPUT}
    said = run_peer("vllm", "-c", THEIRS, asked=json.dumps(asked))
    theirs = json.loads(said.splitlines()[-1])
    ours = figures([*outcomes, RequestOutcome(0.0, error="gone")], 12.5, (50, 90, 99.9), GOODPUT)
    same = (
        *("completed", "failed", "total_input", "total_output", "request_throughput", "request_goodput"),
        *(
            "output_throughput",
            "total_token_throughput",
            "max_output_tokens_per_s",
            "max_concurrent_requests",
        ),
    )
    assert {name: getattr(ours, name) for name in same} == pytest.approx(
        {name: theirs[name] for name in same}
    )
    for name, spread in ours.spreads.items():
        for part in ("mean", "median", "std"):
            assert getattr(spread, part) == pytest.approx(theirs[f"{part}_{name}_ms"]), (name, part)
        theirs_at = dict(theirs[f"percentiles_{name}_ms"])
        assert spread.percentiles == pytest.approx(theirs_at)


def test_its_client_measures_our_server(tmp_path: Path) -> None:
    """`vllm bench serve` as it is, over completions and chat."""
    folder = write_folders(tmp_path) / "0"
    result = tmp_path / "result.json"
    for running in start(folder, EngineConfig(**SETTINGS), ServerConfig(port=0, served_model_name="tiny")):
        for backend, path in (("openai", "/v1/completions"), ("openai-chat", "/v1/chat/completions")):
            options = {
                "backend": backend,
                "endpoint": path,
                "base-url": running.url,
                "model": "tiny",
                "tokenizer": folder,
                "dataset-name": "random",
                "num-prompts": 12,
                "random-input-len": 20,
                "random-output-len": 16,
                "result-filename": result,
            }
            flags = [f"--{name}={value}" for name, value in options.items()]
            run_peer("vllm", "-c", CLIENT, "--save-result", "--ignore-eos", *flags)
            found = json.loads(result.read_text())
            assert (found["completed"], found["failed"], found["total_output_tokens"]) == (12, 0, 12 * 16)
