"""Runs programs that nobody trusts."""

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
