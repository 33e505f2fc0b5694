"""An RL job of several ranks, in which a rank may fail, for `support.nursery`. What ranks would import by themselves as
they come to it is imported here, once for all of them."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
import torch.distributed.fsdp

import rondo.cli.commands.rl
import rondo.parallel.apply
import rondo.rl.rollout.rank_collectors  # noqa: F401
from rondo.base.errors import RondoError, StorageError
from rondo.cli.main import _fail, main
from rondo.parallel.ranks.crew import Paused, together
from rondo.parallel.ranks.world import read_world
from rondo.rl import jobs
from rondo.rl.config import RlConfig
from rondo.rl.remote.rank_policy import RankPolicy
from rondo.rl.rollout.rank_collectors import DividedCollector, FirstRankCollector
from rondo.rl.rollout.replica import WeightReplica
from rondo.weights.shards import Shard


def command(said: str, argv: Sequence[str]) -> None:
    """`rondo` with these arguments; see `_end` for `said`."""
    sys.argv = ["rondo", *argv]
    _end(said, lambda: main(argv))


def job(said: str, config: str, *faults: str) -> None:
    """A fault, `RANK:STEP:WHAT`, is what a rank does after a step, or in it: `dies_in_rollout` and `dies_in_push`."""
    _end(said, lambda: _job(config, *faults))


def _end(said: str, work: Callable[[], int]) -> None:
    """Does it, and ends the process with its exit code. Output goes to `said`.out and `said`.err."""
    for stream, name in ((1, "out"), (2, "err")):
        os.dup2(os.open(f"{said}.{name}", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666), stream)
    code = work()
    for written in (sys.stdout, sys.stderr):
        written.flush()
    os._exit(code)


def _job(config: str, *faults: str) -> int:
    world = read_world()
    told = RlConfig.model_validate_json(config)
    torch.set_num_threads(1)
    for fault in faults:
        rank, at_step, does = fault.split(":")
        if world.rank == int(rank) and does in DEADLY:
            DEADLY[does](int(at_step))

    def on_step(step: int, metrics: object) -> None:
        for fault in faults:
            rank, at_step, does = fault.split(":")
            if world.rank == int(rank) and step == int(at_step):
                if does == "dies":
                    os.kill(os.getpid(), signal.SIGKILL)
                if does == "fails":
                    raise StorageError("the disk is on fire")
                if does == "is_interrupted":
                    os.kill(os.getpid(), signal.SIGINT)

    try:
        with together(world, told.layout, torch.device("cpu"), "rl") as crew:
            jobs.run(jobs.plan(told, crew=crew), on_step, crew=crew)
    except Paused as pause:
        if world.first:
            print(pause)
    except RondoError as error:
        return _fail(error, error.exit_code)
    return 0


def _dies_in_rollout(step: int) -> None:
    """Kills this rank when the rollouts of a step begin, while the other ranks wait for its part."""
    for kind in (DividedCollector, FirstRankCollector):

        def deadly(self: Any, number: int, clock: Any, collect: Any = kind.collect) -> Any:
            if number + 1 == step:
                os.kill(os.getpid(), signal.SIGKILL)
            return collect(self, number, clock)

        kind.collect = deadly  # type: ignore[method-assign]


def _dies_in_push(step: int) -> None:
    """Kills this rank between two parameters of the push of a step: gathered ones, or own shards."""
    pull, begun = WeightReplica.pull, [0]
    shards, read = RankPolicy.shards, [0]

    def deadly(replica: WeightReplica, learner: Any) -> None:
        begun[0] += 1
        if begun[0] == step:
            gathered = learner.gathered

            def cut(dtype: torch.dtype) -> Iterator[Any]:
                for number, pair in enumerate(gathered(dtype)):
                    if number == 2:
                        os.kill(os.getpid(), signal.SIGKILL)
                    yield pair

            learner.gathered = cut
        pull(replica, learner)

    def deadly_shards(policy: RankPolicy) -> Iterator[Shard]:
        read[0] += 1
        for number, shard in enumerate(shards(policy)):
            if (
                number == 2 and read[0] == step + 2
            ):  # they are also read when they are registered, and at the start
                os.kill(os.getpid(), signal.SIGKILL)
            yield shard

    WeightReplica.pull = deadly  # type: ignore[method-assign]
    RankPolicy.shards = deadly_shards  # type: ignore[method-assign]


DEADLY: dict[str, Callable[[int], None]] = {
    "dies_in_rollout": _dies_in_rollout,
    "dies_in_push": _dies_in_push,
}
