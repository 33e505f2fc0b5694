"""`vllm bench serve`'s own arithmetic gives our figures for the same requests."""

import json
import os
import random
import subprocess

import pytest

from rondo.client.bench.figures import figures
from rondo.client.bench.load import Outcome
from support.peers import peer_python

pytestmark = pytest.mark.real

THEIRS = """
import dataclasses, json, sys
from vllm.benchmarks.lib.endpoint_request_func import RequestFuncOutput
from vllm.benchmarks.serve import calculate_metrics
given = json.load(sys.stdin)
outputs = [RequestFuncOutput(**each) for each in given["outputs"]]
found, _ = calculate_metrics([], outputs, given["seconds"], None, [50, 90, 99.9], given["goodput"])
print(json.dumps(dataclasses.asdict(found), default=float))
"""
GOODPUT = {"ttft": 300.0, "tpot": 40.0, "e2el": 2000.0}


def random_outcomes(count: int) -> list[Outcome]:
    rng = random.Random(0)
    made = []
    for _ in range(count):
        gaps = [rng.expovariate(30) for _ in range(rng.randrange(60))]
        first = rng.expovariate(5)
        tokens = 1 + len(gaps) + rng.randrange(5) * bool(gaps)
        made.append(
            Outcome(rng.uniform(50, 60), first, gaps, first + sum(gaps), rng.randrange(1, 99), tokens)
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
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        [str(peer_python("vllm")), "-c", THEIRS],
        input=json.dumps({"outputs": outputs, "seconds": 12.5, "goodput": GOODPUT}),
        env=environment | {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1"},
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    theirs = json.loads(done.stdout.splitlines()[-1])
    ours = figures([*outcomes, Outcome(0.0, error="gone")], 12.5, (50, 90, 99.9), GOODPUT)
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
