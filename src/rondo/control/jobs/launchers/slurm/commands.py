"""sbatch, squeue, sacct, sinfo and scancel as functions. The JSON of each version from 22.05 on is accepted."""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rondo.base.environ import minimal
from rondo.base.errors import InvalidRequest, RondoError, Unavailable
from rondo.base.process import last_line
from rondo.control.jobs.launchers.launcher import Node

SECONDS = 60.0
"""Time limit of one command. Slurm's own time limits are shorter."""
BUSY = re.compile(
    "unable to contact|timed out|timeout|temporarily|connection|communication|zero bytes|try again|"
    "unable to establish|munge|authentication|backup|not responding|resource limit",
    re.IGNORECASE,
)
"""Errors of a controller that is down or busy. Any other error of sbatch is one of the request."""
NO_ACCOUNTING = "accounting storage is disabled"


@dataclass(frozen=True)
class SlurmJob:
    id: int
    name: str
    comment: str
    state: str
    """The first word of the state, such as RUNNING."""
    code: int | None = None
    """Exit code as a shell reports it."""
    reason: str = ""
    nodes: str = ""
    restarts: int = 0


def sbatch(script: str, env: Mapping[str, str], folder: str) -> int:
    """Id of the submitted job. `Unavailable` if the controller does not answer: the job may exist nonetheless."""
    try:
        said = _run(["sbatch", "--parsable", script], env=env, cwd=folder)
    except Unavailable:
        raise
    except RondoError as error:
        raise InvalidRequest(error.message, param="resources", code="slurm_refused") from None
    return int(said.strip().partition(";")[0])


def squeue() -> list[SlurmJob]:
    """Jobs of this user that the controller remembers, those of the last minutes included."""
    found = _json(["squeue", "--json", "--states=all", "--me"])
    return [_job(each) for each in found.get("jobs", [])]


def sacct(id: int) -> SlurmJob | None:
    """The job in Slurm's accounting; None if it is unknown there, or if there is no accounting."""
    try:
        found = _json(["sacct", "--json", "--jobs", str(id), "--duplicates"]).get("jobs", [])
    except Unavailable:
        raise
    except RondoError as error:
        if NO_ACCOUNTING in error.message:
            return None
        raise
    return _job(found[-1]) if found else None


def scancel(id: int, *arguments: str) -> None:
    _run(["scancel", *arguments, str(id)])


def requeue(id: int) -> None:
    _run(["scontrol", "requeue", str(id)])


def drain(node: str, reason: str) -> None:
    _run(["scontrol", "update", f"nodename={node}", "state=drain", f"reason={reason}"])


def sinfo() -> list[Node]:
    return [_node(each) for each in _json(["sinfo", "--json"]).get("nodes", [])]


def _node(found: Mapping[str, Any]) -> Node:
    state, flags = _words(found.get("state")), _words(found.get("state_flags"))
    return Node(
        name=str(found.get("name", "")),
        state=" ".join([*state, *flags]).lower(),
        cpus=_number(found.get("cpus")) or 0,
        gpus=gpus_in(str(found.get("gres", ""))),
        gpus_used=gpus_in(str(found.get("gres_used", ""))),
        memory=_number(found.get("real_memory")) or 0,
        reason=str(found.get("reason") or ""),
    )


def gpus_in(gres: str) -> int:
    """GPUs in a list of generic resources such as `gpu:a100:4(S:0-1),shard:8`."""
    return sum(int(each) for each in re.findall(r"(?:^|,)(?:gres[:/])?gpu(?::[^:,(]+)?:(\d+)", gres))


def _job(found: Mapping[str, Any]) -> SlurmJob:
    state = found.get("job_state", found.get("state"))
    if isinstance(state, Mapping):  # of sacct
        found = {**found, "state_reason": state.get("reason")}
        state = state.get("current")
    comment = found.get("comment") or ""
    return SlurmJob(
        id=int(found["job_id"]),
        name=str(found.get("name") or ""),
        comment=str(comment.get("job") or "") if isinstance(comment, Mapping) else str(comment),
        state=(_words(state) or ["UNKNOWN"])[0].upper(),
        code=_exit_code(found.get("exit_code")),
        reason=str(found.get("state_reason") or "").replace("None", ""),
        nodes=str(found.get("nodes") or ""),
        restarts=_number(found.get("restart_cnt")) or 0,
    )


def _words(state: object) -> list[str]:
    """States are a text, a text with several words, or a list."""
    if isinstance(state, str):
        return state.split()
    return [str(each) for each in state] if isinstance(state, Sequence) else []


def _exit_code(found: object) -> int | None:
    """An exit code is the status of wait(), or an object with the exit code or the signal."""
    if isinstance(found, Mapping):
        signal = found.get("signal")
        if isinstance(signal, Mapping) and (number := _number(signal.get("signal_id", signal.get("id")))):
            return 128 + number
        return _number(found.get("return_code"))
    if isinstance(found, int):
        return 128 + (found & 127) if found & 127 else found >> 8
    return None


def _number(found: object) -> int | None:
    """A number, or an object with `set` and `number`."""
    if isinstance(found, Mapping):
        return _number(found.get("number")) if found.get("set", True) else None
    return int(found) if isinstance(found, int | float) else None


def _json(command: list[str]) -> dict[str, Any]:
    said = _run(command)
    try:
        found = json.loads(said)
    except ValueError:
        raise Unavailable(f"{command[0]} printed no JSON: {said[:200]!r}.", code="slurm_failed") from None
    if not isinstance(found, dict):
        return {}
    # squeue exits with 0 when it has no answer of the controller.
    if errors := [each for each in found.get("errors") or () if isinstance(each, Mapping)]:
        said = "; ".join(str(each.get("description") or each.get("error")) for each in errors)
        raise Unavailable(f"{command[0]} failed: {said[:500]}.", code="slurm_failed")
    return found


def _run(command: list[str], env: Mapping[str, str] | None = None, cwd: str | None = None) -> str:
    try:
        done = subprocess.run(
            command,
            env=environment() if env is None else env,
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=SECONDS,
        )
    except FileNotFoundError:
        raise Unavailable(
            f"{command[0]} is not on the PATH of the gateway: install Slurm's client commands.",
            code="slurm_failed",
        ) from None
    except subprocess.TimeoutExpired:
        raise Unavailable(f"{command[0]} did not answer in {SECONDS:.0f} s.", code="slurm_failed") from None
    if done.returncode:
        said = last_line(done.stderr or done.stdout, 500)
        error = Unavailable if BUSY.search(done.stderr) else RondoError
        raise error(f"{command[0]} failed: {said}", code="slurm_failed")
    return done.stdout


def environment() -> dict[str, str]:
    """Environment of Slurm's commands."""
    return minimal(name for name in os.environ if name.startswith("SLURM_CONF"))
