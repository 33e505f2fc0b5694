"""Sandbox for untrusted programs: a warm process per slot, isolated by Linux namespaces, seccomp and resource limits.

`pool.py` lends workers, `worker.py` communicates with one of them, `runs.py` describes a run and its verdict, and
`inside/` is the code that runs within the isolated process.
"""

from rondo.graders.sandbox.limits import SandboxLimits
from rondo.graders.sandbox.pool import Sandbox
from rondo.graders.sandbox.runs import Exam, SandboxRun, Verdict
from rondo.graders.sandbox.worker import WallRefused, WorkerLost, WorkerSilent

__all__ = [
    "Exam",
    "Sandbox",
    "SandboxLimits",
    "SandboxRun",
    "Verdict",
    "WallRefused",
    "WorkerLost",
    "WorkerSilent",
]
