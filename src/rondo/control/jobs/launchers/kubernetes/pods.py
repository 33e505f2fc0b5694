"""Causes of a failed attempt, from the status of its pods."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rondo.control.jobs.launchers.launcher import AttemptState

DISRUPTION = "DisruptionTarget"
"""Condition of a pod that preemption, a drain, a lost node or a node under pressure has ended."""
LOST = frozenset(
    ["Evicted", "NodeLost", "NodeAffinity", "Preempting", "Shutdown", "NodeShutdown", "Terminated"]
)
"""Reasons of such pods where the condition is missing."""
OWN_LIMIT = re.compile(r"exceed\w* (?:its|the) [^.]*\blimit", re.IGNORECASE)
"""Message of an eviction because the pod used more storage than its own limit."""
OUT_OF_MEMORY = 137


def cause_of(pods: Sequence[Mapping[str, Any]]) -> AttemptState | None:
    """Why the attempt failed; None if no pod has a reason. A lost pod explains the exit codes of the others, which fail
    without it."""
    for each in (_memory, _limit, _disruption, _exit):
        if (found := next(each(pods), None)) is not None:
            return found
    return None


def _memory(pods: Sequence[Mapping[str, Any]]) -> Iterator[AttemptState]:
    for pod, ended in _containers(pods):
        if ended.get("reason") == "OOMKilled":
            text = f"pod {pod} used more memory than its limit (OOMKilled): raise resources.memory"
            yield AttemptState("ended", OUT_OF_MEMORY, text)


def _limit(pods: Sequence[Mapping[str, Any]]) -> Iterator[AttemptState]:
    for pod in pods:
        status = pod.get("status") or {}
        if status.get("reason") == "Evicted" and OWN_LIMIT.search(str(status.get("message"))):
            text = f"pod {pod['metadata']['name']} was evicted: {str(status['message']).strip()}"
            yield AttemptState("ended", OUT_OF_MEMORY, text)


def _disruption(pods: Sequence[Mapping[str, Any]]) -> Iterator[AttemptState]:
    for pod in pods:
        status = pod.get("status") or {}
        condition = next((each for each in status.get("conditions") or () if _is_disruption(each)), None)
        if condition is None and status.get("reason") not in LOST:
            continue
        told = [status.get("reason") or (condition or {}).get("reason"), status.get("message")]
        told[1] = told[1] or (condition or {}).get("message")
        text = ": ".join(str(each).strip() for each in told if each)
        node = (pod.get("spec") or {}).get("nodeName") or "its node"
        yield AttemptState("displaced", None, f"pod {pod['metadata']['name']} on {node} was lost ({text})")


def _exit(pods: Sequence[Mapping[str, Any]]) -> Iterator[AttemptState]:
    for pod, ended in _containers(pods):
        if code := int(ended.get("exitCode") or 0):
            text = f"the container of pod {pod} ended with exit code {code}"
            said = str(ended.get("message") or "").strip()
            yield AttemptState("ended", code, f"{text}: {said}" if said else text)


def _containers(pods: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Name of the pod, and each ended container, the earliest first."""
    found = list[tuple[str, Mapping[str, Any]]]()
    for pod in pods:
        for each in (pod.get("status") or {}).get("containerStatuses") or ():
            for state in (each.get("state"), each.get("lastState")):
                if ended := (state or {}).get("terminated"):
                    found.append((str(pod["metadata"]["name"]), ended))
    return iter(sorted(found, key=lambda each: str(each[1].get("finishedAt") or "")))


def _is_disruption(condition: Mapping[str, Any]) -> bool:
    return condition.get("type") == DISRUPTION and condition.get("status") == "True"
