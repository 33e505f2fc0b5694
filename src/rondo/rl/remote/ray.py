"""Placement by Ray: each engine is a `rondo serve` in an actor, and the learner is an actor on another node, which
uses the engines over HTTP. Steps are reported to the caller.
"""

from __future__ import annotations

import os
import secrets
import socket
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from rondo.base.errors import ConfigError, MissingExtra, RondoError, Unavailable
from rondo.base.process import start
from rondo.base.storage.home import home
from rondo.client.http import Client
from rondo.rl import jobs
from rondo.rl.config import RlConfig
from rondo.rl.remote.config import RayConfig
from rondo.rl.rollout.engines import engine_config
from rondo.train.loop import OnResume

CONNECT_SECONDS = 10.0
PLACE_SECONDS = 120.0
"""Timeout of the placement, during which an autoscaling cluster may start nodes."""
START_SECONDS = 300.0
"""Timeout of an engine's start, including the load of its model."""
POLL_SECONDS = 0.2
PROBE_SECONDS = 5.0
LOG_CHARACTERS = 2000
"""Characters from the end of a server's log that an error message contains."""


def run(plan: jobs.RlJobPlan, on_step: jobs.OnStep | None = None, on_resume: OnResume | None = None) -> Path:
    """As `jobs.run`. The run ends when a node is lost; the same command places the roles again and resumes."""
    if plan.job.done:
        return plan.job.result
    ray = _ray()
    try:
        _check_reachable(plan.config.ray.address)
        ray.init(address=plan.config.ray.address, log_to_driver=False)
    except OSError as error:
        raise ConfigError(
            f"there is no Ray cluster at {plan.config.ray.address}: start one with `ray start --head`, and `ray start "
            "--address=...` on its other nodes.",
            param="rl.ray.address",
        ) from error
    try:
        return _run(ray, plan, on_step, on_resume)
    except ray.exceptions.RayTaskError as error:
        if isinstance(error.cause, RondoError):
            raise error.cause from None
        raise
    except ray.exceptions.RayActorError as error:
        raise Unavailable(
            f"a role of this run was lost with its process or its node ({str(error).splitlines()[0]}). The same "
            "command places it again and resumes from the last checkpoint."
        ) from error
    finally:
        ray.shutdown()


def _run(ray: Any, plan: jobs.RlJobPlan, on_step: jobs.OnStep | None, on_resume: OnResume | None) -> Path:
    from ray.util.queue import Queue

    config, key = plan.config, secrets.token_urlsafe(24)
    placements = _placements(ray, config)
    flags = [f"--engine.{name}={value}" for name, value in _changed_settings(config).items()]
    model = str(plan.model.absolute())
    engines = [
        ray.remote(EngineRole).options(**place).remote(model, [*flags, *config.ray.serve], key)
        for place in placements[1:]
    ]
    urls = ray.get([engine.url.remote() for engine in engines])
    learner = ray.remote(LearnerRole).options(**placements[0]).remote()
    reports = Queue(actor_options={"num_cpus": 0})
    engine = config.engine.model_copy(update={"url": tuple(urls)})
    given = config.model_copy(update={"model": model, "engine": engine, "ray": RayConfig()})
    done = learner.run.remote(given.model_dump_json(), str(home()), key, reports)
    serving = [engine.serve.remote() for engine in engines]
    ended: list[Any] = []
    while not ended:
        ended, _ = ray.wait([done, *serving], timeout=POLL_SECONDS)
        for step, metrics in reports.get_nowait_batch(reports.qsize()):
            if metrics is not None and on_step is not None:
                on_step(step, metrics)
            if metrics is None and on_resume is not None:
                on_resume(step)
    return Path(ray.get(ended[0]))  # an engine never ends with a result: its actor raises


def _placements(ray: Any, config: RlConfig) -> list[dict[str, Any]]:
    """Actor options of the learner and of each engine, spread over the nodes."""
    from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

    each = {"CPU": config.ray.cpus} | ({"GPU": config.ray.gpus} if config.ray.gpus else {})
    count = 1 + config.ray.engines
    group = ray.util.placement_group([each] * count, strategy="SPREAD")
    try:
        ray.get(group.ready(), timeout=PLACE_SECONDS)
    except ray.exceptions.GetTimeoutError as error:
        raise Unavailable(
            f"the Ray cluster has no room for {count} roles of {each}: it has {ray.available_resources()}. Add nodes, "
            "or lower rl.ray.engines, rl.ray.cpus or rl.ray.gpus."
        ) from error
    return [
        {
            "num_cpus": config.ray.cpus,
            "num_gpus": config.ray.gpus,
            "scheduling_strategy": PlacementGroupSchedulingStrategy(group, number),
        }
        for number in range(count)
    ]


def _changed_settings(config: RlConfig) -> dict[str, object]:
    """Engine settings of this run that differ from the defaults."""
    return engine_config(config).model_dump(exclude_defaults=True)


class EngineRole:
    """An actor with a `rondo serve` as a child process, which ends with the actor."""

    def __init__(self, model: str, flags: list[str], key: str) -> None:
        import ray

        host = ray.util.get_node_ip_address()
        with socket.socket() as free:
            free.bind((host, 0))
            port = free.getsockname()[1]
        self._url = f"http://{host}:{port}"
        self._log = Path(tempfile.mkdtemp(prefix="rondo-engine-")) / "log"
        line = [sys.executable, "-m", "rondo.cli", "serve", model, f"--host={host}", f"--port={port}", *flags]
        # The learner is on another node, so the server listens on an address of the cluster's own network.
        line.append("--allow-public-without-key")
        with self._log.open("wb") as out:
            self._process = start(
                line,
                env=os.environ | {"RONDO_SERVER_ADMIN_KEY": key},
                stdout=out,
                stderr=out,
                end_with_parent=True,
            )

    def url(self) -> str:
        """The server's URL, as soon as it is ready."""
        deadline = time.monotonic() + START_SECONDS
        while self._process.poll() is None and time.monotonic() < deadline:
            with Client(self._url) as client:
                if client.ready(PROBE_SECONDS):
                    return self._url
            time.sleep(POLL_SECONDS)
        raise Unavailable(f"an engine did not start on {self._url}: {self._log_end()}")

    def serve(self) -> None:
        """Wait for the server, and raise when it ends."""
        status = self._process.wait()
        raise Unavailable(
            f"the engine on {self._url} ended with status {status}: {self._log_end()}\n"
            "The same command resumes from the last checkpoint."
        )

    def _log_end(self) -> str:
        return self._log.read_text("utf-8", "replace")[-LOG_CHARACTERS:]


class LearnerRole:
    def run(self, config: str, place: str, key: str, reports: Any) -> str:
        """Run the job and return the folder of its result. Steps are reported to the queue `reports`."""
        os.environ |= {"RONDO_HOME": place, "RONDO_ADMIN_KEY": key}
        plan = jobs.plan(RlConfig.model_validate_json(config))
        return str(
            jobs.run(
                plan,
                lambda step, metrics: reports.put((step, metrics)),
                lambda step: reports.put((step, None)),
            )
        )


def _check_reachable(address: str) -> None:
    """Fail after `CONNECT_SECONDS` for an unreachable address, because Ray would retry for minutes."""
    host, colon, port = address.rpartition(":")
    if colon and port.isdigit():
        socket.create_connection((host, int(port)), timeout=CONNECT_SECONDS).close()


def _ray() -> Any:
    try:
        import ray
    except ImportError:
        raise MissingExtra("ray", "ray") from None
    return ray
