"""Jobs as objects of a Kubernetes cluster, whose operators and queues decide when their pods start."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, get_args

from rondo.base.errors import RondoError, Unavailable
from rondo.base.storage.files import atomic_write, storage_error
from rondo.base.storage.home import home
from rondo.control.config import KubernetesConfig
from rondo.control.jobs.launchers.folder import AttemptFolder
from rondo.control.jobs.launchers.kubernetes.api import KubernetesApi
from rondo.control.jobs.launchers.kubernetes.manifest import Kind, Manifest, manifest_of, secret_of
from rondo.control.jobs.launchers.kubernetes.pods import OUT_OF_MEMORY, cause_of
from rondo.control.jobs.launchers.launcher import Attempt, AttemptState, Node
from rondo.control.jobs.request import request_of
from rondo.jobs.health import read_reports
from rondo.jobs.spec import JobSpec

KINDS: tuple[Kind, ...] = get_args(Kind)
UNITS = {"Ki": 1 / 1024, "Mi": 1.0, "Gi": 1024.0, "Ti": 1024.0**2, "": 1 / 1024**2}
"""MiB of a unit."""
SECRET = "secret"
"""File of an attempt with a Secret."""


@dataclass
class KubernetesLauncher:
    config: KubernetesConfig = field(default_factory=KubernetesConfig)
    time_limit: int | None = None
    """Default limit of an attempt in seconds."""
    name: str = "kubernetes"
    leaves_objects: ClassVar[bool] = True

    def __post_init__(self) -> None:
        self._api = KubernetesApi(self.config)

    def check(self, spec: JobSpec) -> None:
        request_of(spec)

    def room(self, active: Sequence[JobSpec], wanted: JobSpec) -> bool:
        return True

    def full(self, active: Sequence[JobSpec]) -> bool:
        return False

    def start(self, attempt: Attempt) -> None:
        folder = AttemptFolder.of(attempt.job, attempt.number)
        request = request_of(attempt.spec, self.time_limit)
        try:
            folder.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise storage_error(folder.path, error) from error
        name = _name(attempt.job, attempt.number)
        place = (str(home()), str(folder.path))
        try:
            for kind in KINDS if self.config.kind == "auto" else (self.config.kind,):
                manifest = manifest_of(
                    *(kind, name, attempt.spec.arguments(), request, self.config),
                    *place,
                    attempt.avoid,
                    list(attempt.env),
                )
                atomic_write(
                    folder.path / "kubernetes", f"{kind}\n"
                )  # first: a crash leaves no unknown object
                if attempt.env:
                    (folder.path / SECRET).touch()
                    self._api.create_secret(secret_of(name, attempt.env, self.config))
                if self._api.create(kind, manifest):
                    return
            raise Unavailable(
                "The cluster has neither TrainJobs nor JobSets: install Kubeflow Trainer or JobSet.",
                code="kubernetes_failed",
            )
        except RondoError:
            with contextlib.suppress(RondoError):  # an unanswered request may have created the object
                self.clean(attempt.job, attempt.number)
            raise

    def look(self, job: str, number: int) -> AttemptState:
        folder, name = AttemptFolder.of(job, number), _name(job, number)
        kind = _kind(folder)
        if kind is None:
            return AttemptState("absent", detail="no object was created for it")
        found = self._api.read(kind, name)
        if found is None:
            if folder.code is not None or (folder.path / "stopped").exists():
                return AttemptState("ended", folder.code)
            begun = (folder.path / "begun").exists()
            if not begun:
                return AttemptState("absent", detail=f"there is no {kind} {name}")
            return AttemptState("cancelled", detail=f"{kind} {name} was deleted")
        state = state_of(kind, found, folder.code)
        return state if state.phase != "displaced" and not state.code else self._failed(folder, name, state)

    def stop(self, job: str, number: int, *, kill: bool = False) -> bool:
        folder, name = AttemptFolder.of(job, number), _name(job, number)
        kind = _kind(folder)
        if kind is None:
            return False
        (folder.path / "stopped").touch()
        if kill:
            self._api.delete_pods(name)
        return self._api.delete(kind, name, 0 if kill else None)

    def clean(self, job: str, number: int) -> None:
        folder, name = AttemptFolder.of(job, number), _name(job, number)
        if (kind := _kind(folder)) is not None:
            self._api.delete(kind, name, None)
            if (folder.path / SECRET).exists():
                self._api.delete_secret(name)

    def _failed(self, folder: AttemptFolder, name: str, state: AttemptState) -> AttemptState:
        """The state of a failed attempt, by the GPU faults that its pods report and by the reasons of the pods."""
        if faulty := read_reports(folder.path):
            told = "; ".join(f"{node}: {', '.join(faults)}" for node, faults in faulty.items())
            return AttemptState("displaced", folder.code, told, tuple(faulty))
        cause = cause_of(self._api.pods(name))
        if cause is None or (folder.code is not None and cause.code not in (None, OUT_OF_MEMORY)):
            return state
        return replace(cause, code=cause.code if folder.code is None else folder.code)

    def nodes(self) -> list[Node]:
        return [_node(found, self.config.gpu) for found in self._api.nodes()]


def state_of(kind: Kind, found: Mapping[str, Any], code: int | None) -> AttemptState:
    """State from the conditions of a TrainJob or a JobSet."""
    name, status = found["metadata"]["name"], found.get("status") or {}
    said = {
        each["type"]: str(each.get("message") or "")
        for each in status.get("conditions") or ()
        if each.get("status") == "True"
    }
    label = f"{kind} {name}"
    if "deletionTimestamp" in found["metadata"]:
        return AttemptState("running", detail=f"{label} is being deleted")
    if "Complete" in said or "Completed" in said:
        return AttemptState("ended", 0 if code is None else code)
    if "Failed" in said:
        if code is None:
            return AttemptState("displaced", detail=f"{label} failed: {said['Failed'] or 'no reason given'}")
        return AttemptState("ended", code)
    jobs = status.get("jobsStatus") or status.get("replicatedJobsStatus") or ()
    if any(each.get("active") or each.get("ready") for each in jobs):
        return AttemptState("running", detail=f"{label} runs")
    reason = said.get("Suspended") or (
        "it is suspended" if found["spec"].get("suspend") else "no pod is active"
    )
    return AttemptState("waiting", detail=f"{label} waits: {reason}")


def _node(found: Manifest, gpu: str) -> Node:
    status, spec = found.get("status") or {}, found.get("spec") or {}
    ready = any(
        each.get("type") == "Ready" and each.get("status") == "True"
        for each in status.get("conditions") or ()
    )
    taints = [str(each.get("key")) for each in spec.get("taints") or ()]
    state = "ready" if ready else "not ready"
    room = status.get("allocatable") or {}
    return Node(
        name=str(found["metadata"]["name"]),
        state=f"{state} unschedulable" if spec.get("unschedulable") else state,
        cpus=int(_quantity(str(room.get("cpu", "0")))),
        gpus=int(room.get(gpu, 0)),
        memory=_mebibytes(str(room.get("memory", "0"))),
        reason=", ".join(taints),
    )


def _quantity(text: str) -> float:
    return float(text[:-1]) / 1000 if text.endswith("m") else float(text)


def _mebibytes(text: str) -> int:
    number = text.rstrip("KMGTi")
    return int(float(number) * UNITS.get(text[len(number) :], 1.0))


def _kind(folder: AttemptFolder) -> Kind | None:
    with contextlib.suppress(OSError):
        told = (folder.path / "kubernetes").read_text().strip()
        return next((kind for kind in KINDS if kind == told), None)
    return None


def _name(job: str, number: int) -> str:
    return f"{job}-{number}"
