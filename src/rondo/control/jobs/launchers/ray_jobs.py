"""Jobs as jobs of a Ray cluster, through the REST API of its dashboard. RONDO_HOME is shared by all nodes."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar

import httpx

from rondo.base.environ import minimal
from rondo.base.errors import InvalidRequest, RondoError, Unavailable
from rondo.base.storage.files import atomic_write
from rondo.control.config import RayJobsConfig
from rondo.control.jobs.launchers.command import WAIT, limited, on_one_node
from rondo.control.jobs.launchers.folder import AttemptFolder
from rondo.control.jobs.launchers.launcher import Attempt, AttemptState, Node
from rondo.control.jobs.request import request_of
from rondo.jobs.spec import JobSpec

SECONDS = 30.0
MIB = 1 << 20


@dataclass
class RayLauncher:
    config: RayJobsConfig = field(default_factory=RayJobsConfig)
    time_limit: int | None = None
    """Default limit of an attempt in seconds."""
    name: str = "ray"
    leaves_objects: ClassVar[bool] = False

    def check(self, spec: JobSpec) -> None:
        request = request_of(spec)
        if request.nodes > 1:
            raise InvalidRequest(
                f"resources.nodes is {request.nodes}, and a Ray job has one node: leave it out, or use the launcher "
                "slurm or kubernetes.",
                param="resources.nodes",
            )

    def room(self, active: Sequence[JobSpec], wanted: JobSpec) -> bool:
        return True

    def full(self, active: Sequence[JobSpec]) -> bool:
        return False

    def start(self, attempt: Attempt) -> None:
        folder = AttemptFolder.of(attempt.job, attempt.number)
        request = request_of(attempt.spec, self.time_limit)
        python = self.config.python or sys.executable
        command = on_one_node(request, attempt.spec.arguments(), python)
        line = f"{shlex.join([*limited(request.time_limit), *command])} > output.log 2>&1 < /dev/null"
        begin = f"cd {shlex.quote(str(folder.path))} || exit 1\nrm -f code\n: > begun\n"
        atomic_write(folder.path / "job.sh", begin + WAIT.format(command=line) + "exit $code\n")
        # Ray's own variables come from the node; a path of the gateway's machine may not exist there.
        env = {name: value for name, value in folder.environment().items() if name not in minimal()}
        wait = {"RAY_JOB_STOP_WAIT_TIME_S": str(self.config.grace_seconds)}
        body: dict[str, Any] = {
            "entrypoint": f"sh {shlex.quote(str(folder.path / 'job.sh'))}",
            "submission_id": _name(attempt.job, attempt.number),
            "runtime_env": {"env_vars": env | wait | dict(attempt.env)},
            "metadata": {"rondo_job": attempt.job},
            "entrypoint_num_cpus": request.cpus_per_node,
        }
        if request.gpus_per_node:
            body["entrypoint_num_gpus"] = request.gpus_per_node
        if request.memory:
            body["entrypoint_memory"] = request.memory * MIB
        response = self._call("POST", "/api/jobs/", json=body)
        if response.status_code != 200 and "already" not in response.text:
            _check(response)

    def look(self, job: str, number: int) -> AttemptState:
        folder, name = AttemptFolder.of(job, number), _name(job, number)
        response = self._call("GET", f"/api/jobs/{name}")
        if response.status_code == 404:
            if folder.code is not None:
                return AttemptState("ended", folder.code)
            if (folder.path / "begun").exists():
                return AttemptState("displaced", detail=f"the Ray cluster has lost its job {name}")
            return AttemptState("absent", detail=f"there is no Ray job {name}")
        _check(response)
        found = response.json()
        status, message = found.get("status"), str(found.get("message") or "")
        if status == "PENDING":
            return AttemptState("waiting", detail=f"Ray job {name} waits for resources")
        if status == "RUNNING":
            return AttemptState("running", detail=f"Ray job {name} runs")
        code = folder.code if folder.code is not None else found.get("driver_exit_code")
        if status == "STOPPED" and not (folder.path / "stopped").exists():
            return AttemptState("cancelled", code, f"Ray job {name} was stopped")
        if status == "FAILED" and code is None:
            return AttemptState("displaced", detail=f"Ray job {name} failed: {message[:500]}")
        return AttemptState("ended", code)

    def stop(self, job: str, number: int, *, kill: bool = False) -> bool:
        """Ray kills the job itself when it has not ended after `grace_seconds`."""
        (AttemptFolder.of(job, number).path / "stopped").touch()
        response = self._call("POST", f"/api/jobs/{_name(job, number)}/stop")
        if response.status_code == 404:
            return False
        _check(response)
        return bool(response.json().get("stopped"))

    def clean(self, job: str, number: int) -> None:
        pass

    def nodes(self) -> list[Node]:
        response = self._call("GET", "/nodes", params={"view": "summary"})
        _check(response)
        return [_node(found) for found in response.json()["data"]["summary"]]

    @cached_property
    def _client(self) -> httpx.Client:
        """Connections are shared by all calls, which come from several threads."""
        return httpx.Client(timeout=SECONDS, trust_env=False)

    def _call(self, method: str, path: str, **more: Any) -> httpx.Response:
        headers = {"Authorization": f"Bearer {self.config.token}"} if self.config.token else {}
        try:
            return self._client.request(
                method, self.config.address.rstrip("/") + path, headers=headers, **more
            )
        except httpx.HTTPError as error:
            raise Unavailable(
                f"The Ray dashboard at {self.config.address} does not answer: {error!r}.", code="ray_failed"
            ) from error


def _check(response: httpx.Response) -> None:
    if response.status_code < 300:
        return
    lines = response.text.strip().splitlines() or [""]
    text = f"Ray answered {response.status_code}: {lines[-1][:500]}"
    if response.status_code in (401, 403):
        text += " Set gateway.jobs.ray.token."
    if response.status_code == 400:
        raise InvalidRequest(text, code="ray_refused")
    busy = response.is_server_error or response.status_code in (401, 403)
    raise (Unavailable if busy else RondoError)(text, code="ray_failed")


def _node(found: dict[str, Any]) -> Node:
    raylet = found.get("raylet") or {}
    total = raylet.get("resourcesTotal") or {}
    return Node(
        name=str(found.get("hostname") or raylet.get("nodeManagerHostname") or found.get("ip") or ""),
        state=str(raylet.get("state", "")).lower(),
        cpus=int(total.get("CPU", 0)),
        gpus=int(total.get("GPU", 0)),
        memory=int(total.get("memory", 0)) // MIB,
    )


def _name(job: str, number: int) -> str:
    return f"{job}-{number}"
