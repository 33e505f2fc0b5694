"""RL on a Ray cluster of two nodes on this machine: run by Ray's own environment. What it finds is its last line."""

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import ray
from ray.cluster_utils import Cluster

from rondo.base.errors import RondoError
from rondo.rl import jobs
from rondo.rl.config import RlConfig
from rondo.rl.remote import ray as on_ray
from rondo.rl.remote.config import RayConfig


class Nodes:
    """Where each role was placed."""

    def __init__(self) -> None:
        self.found: dict[str, str] = {}
        self._placements = on_ray._placements

    def places(self, ray: Any, config: RlConfig) -> list[dict[str, Any]]:
        places = self._placements(ray, config)
        group = ray.util.placement_group_table(places[0]["scheduling_strategy"].placement_group)
        roles = ("learner", *(f"engine{number}" for number in range(config.ray.engines)))
        self.found = {role: group["bundles_to_node_id"][number] for number, role in enumerate(roles)}
        return places


def main(model: str) -> None:
    cluster = Cluster()
    for _ in range(2):
        cluster.add_node(num_cpus=1, include_dashboard=False)
    nodes = Nodes()
    on_ray._placements = nodes.places
    on_ray.PLACE_SECONDS = 5.0
    config = RlConfig(
        model=model,
        steps=30,
        save_every=1,
        lr=1e-2,
        prompts_per_step=3,
        samples_per_prompt=4,
        eval_prompts=4,
        max_tokens=6,
        tokens_per_microbatch=256,
        deterministic=True,
        ray=RayConfig(engines=1, address=cluster.address),
    )
    seen: list[tuple[int, float]] = []
    victims = [b"ray::EngineRole", b"rondo.cli\0serve", b"ray::LearnerRole"]

    def tell(step: int, metrics: Any) -> None:
        seen.append((step, metrics["weight_version"]))
        if victims and len(victims) == 3 - len(lost):
            kill(victims.pop())

    lost: list[str] = []
    try:
        errors = [refused(config, serve=("--engine.nothing=1",)), refused(config, gpus=1.0)]
        on_ray.PLACE_SECONDS = 60.0
        for _ in tuple(victims):
            try:
                on_ray.run(jobs.plan(config), tell)
            except RondoError as error:
                lost.append(error.message)
        left = on_ray.run(jobs.plan(config), tell)
    finally:
        cluster.shutdown()
    assert not ray.is_initialized()
    errors.append(refused(config.model_copy(update={"seed": 1}), address="127.0.0.1:9"))
    found = {
        "seen": seen,
        "lost": lost,
        "left": str(left),
        "job": jobs.plan(config).job.name,
        "errors": errors,
    }
    print(json.dumps({"nodes": nodes.found} | found))


def kill(command: bytes) -> None:
    """With -9. Of the processes of this cluster the one whose command line holds that."""
    own = os.fsencode(os.environ["RONDO_HOME"])
    (found,) = (
        process
        for process in Path("/proc").glob("[0-9]*")
        if command in read(process / "cmdline") and own in read(process / "environ")
    )
    os.kill(int(found.name), signal.SIGKILL)


def read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""


def refused(config: RlConfig, **changes: object) -> str:
    """What is said of a run that cannot be."""
    try:
        changed = config.ray.model_copy(update=changes)
        on_ray.run(jobs.plan(config.model_copy(update={"ray": changed})))
    except RondoError as error:
        return error.message
    return ""


main(sys.argv[1])
