"""A push from a learner of two ranks, FSDP 2 and TP 2, with 50M parameters: the shards of all ranks beside the copy
that is gathered on the first rank.

Each case runs in processes of its own, one thread each. Memory is a rank's private memory during pushes, above that of
a rank with only the learner; the two segments in shared memory are the same for both. Time is the median push without
an engine.
"""

import argparse
import ctypes
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

# ruff: isort: off
from common import Report, arguments, free_port, median, say

import torch

# ruff: isort: on
from rondo import models
from rondo.demo.recipe import DemoRecipe, hf_config, tokenizer_for
from rondo.models.files.mapping import outgoing
from rondo.parallel.config import LayoutConfig
from rondo.parallel.ranks.mesh import join, leave
from rondo.parallel.ranks.world import read_world
from rondo.rl.config import RlConfig
from rondo.rl.remote.config import FarConfig
from rondo.rl.remote.rank_policy import rank_policy
from rondo.rl.rollout.replica import WeightReplica
from rondo.train.learner import learner as learners
from rondo.weights.config import WeightsConfig
from rondo.weights.publisher import Publisher
from rondo.weights.shards import Shard
from train_memory import resident

RANKS, PUSHES = 2, 7
RECIPE = DemoRecipe(hidden=768, layers=7)
LAYOUTS = {"FSDP 2": {"zero": 3}, "TP 2": {"tp": 2}}
TYPES = {"float32": None, "bfloat16": "bfloat16"}
KINDS = ("gathered", "shards")


class Peak:
    """Largest private memory of this process in MiB, sampled by a thread."""

    def __init__(self) -> None:
        self.mib, self._ended = 0.0, threading.Event()
        self._thread = threading.Thread(target=self._sample)

    def __enter__(self) -> "Peak":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _sample(self) -> None:
        while not self._ended.wait(0.001):
            self.mib = max(self.mib, resident("RssAnon"))


def measure(kind: str, layout: str, precision: str) -> None:
    """Prints the private memory of each rank above the learner's, in MiB, and the seconds of a push."""
    torch.set_num_threads(1)
    learners.keep_freed_memory = lambda: None
    model = models.new(hf_config(RECIPE, tokenizer_for(0)), seed=0)
    mesh = join(LayoutConfig(**LAYOUTS[layout]), read_world(), model.config, torch.device("cpu"))
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        weights = WeightsConfig(folder=folder)
        far = FarConfig(url=("http://127.0.0.1:1",), weights=weights)
        config = RlConfig(precision=TYPES[precision], engine=far)
        first, hf = mesh.world.first, dict(model.config.hf or {})
        policy = rank_policy(model, config, mesh)
        assert policy is not None
        replica = WeightReplica(model, config, mesh.device, here=first and kind == "gathered")
        copied = 0.0 if replica.model is None else sum(p.nbytes for p in replica.model.parameters()) / 2**20
        learner = learners.Learner(model, config, mesh)
        policy.attach(learner)
        ctypes.CDLL("libc.so.6").malloc_trim(0)
        before = resident("RssAnon") - copied
        publisher, seconds = None, []
        if kind == "shards":
            publisher = Publisher("m", hf, weights, group=policy.group)
            publisher.register(policy.shards)
        elif replica.model is not None:
            publisher, whole = Publisher("m", hf, weights), replica.model
            publisher.register(lambda: (Shard(each.name, each.make()) for each in outgoing(whole)))
        with Peak() as peak:
            for version in range(1, PUSHES + 1):
                mesh.said(None)
                begin = time.perf_counter()
                if kind == "gathered":
                    replica.pull(learner)
                if publisher is not None:
                    publisher.push(version)
                seconds.append(time.perf_counter() - begin)
        above = policy._ranks.from_all(peak.mib - before)
        if publisher is not None:
            publisher.close()
    if first:
        print(json.dumps({"seconds": median(seconds[1:]), "first": above[0], "other": above[1]}))
    leave()


def run(kind: str, layout: str, precision: str) -> dict[str, float]:
    shared = {"WORLD_SIZE": str(RANKS), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    shared["OMP_NUM_THREADS"] = "1"
    asked = [sys.executable, str(Path(__file__)), "--one", kind, layout, precision]
    ranks = [
        subprocess.Popen(
            asked, env=os.environ | shared | {"RANK": str(rank)}, stdout=subprocess.PIPE, text=True
        )
        for rank in range(RANKS)
    ]
    said = [rank.communicate()[0] for rank in ranks]
    if any(rank.returncode for rank in ranks):
        raise SystemExit("a rank failed")
    found: dict[str, float] = json.loads(said[0].splitlines()[-1])
    return found


def main() -> None:
    if sys.argv[1:2] == ["--one"]:
        parser = argparse.ArgumentParser()
        parser.add_argument("--one", nargs=3)
        measure(*parser.parse_args().one)
        return
    options = arguments(__doc__ or "")
    report = Report(f"a push from {RANKS} ranks")
    report.columns["gathered"] = {}
    for layout in LAYOUTS:
        for precision in list(TYPES)[: 1 if options.quick else None]:
            found = {}
            for kind in KINDS:
                say(f"{layout}, {precision}, {kind}")
                found[kind] = run(kind, layout, precision)
            for name, title in (
                ("seconds", "seconds"),
                ("first", "MiB, first rank"),
                ("other", "MiB, other rank"),
            ):
                figure = f"{layout}, {precision}: {title}"
                report.ours[figure] = found["shards"][name]
                report.columns["gathered"][figure] = found["gathered"][name]
    report.show(options.json)


if __name__ == "__main__":
    main()
