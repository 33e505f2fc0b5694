"""Runs programs that nobody trusts."""

from rondo.graders.sandbox.limits import Limits
from rondo.graders.sandbox.pool import Sandbox
from rondo.graders.sandbox.runs import Exam, Run, Verdict
from rondo.graders.sandbox.worker import WallRefused, WorkerLost, WorkerSilent

__all__ = ["Exam", "Limits", "Run", "Sandbox", "Verdict", "WallRefused", "WorkerLost", "WorkerSilent"]
