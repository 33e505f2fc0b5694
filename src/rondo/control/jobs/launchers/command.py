"""Commands of a job's process: `rondo` itself, several ranks of one machine, and a shell that stores the exit code."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from rondo.control.jobs.request import ResourceRequest, request_of
from rondo.jobs.spec import JobSpec

MODULE = "rondo.cli"
SAVE_SECONDS = 60
"""Seconds after the time limit in which a job must have saved."""
WAIT = """
asked= child=
trap 'asked=1; kill -TERM $child 2> /dev/null' TERM
{command} &
child=$!
[ -z "$asked" ] || kill -TERM $child 2> /dev/null
wait $child; code=$?
while kill -0 $child 2> /dev/null; do wait $child; code=$?; done
echo $code > code.new && mv code.new code
"""
"""A shell that forwards SIGTERM and leaves the command's exit code in a file, whether or not the gateway lives."""


def command_of(spec: JobSpec) -> list[str]:
    """The command of a job on one machine; several ranks run under PyTorch's elastic agent."""
    return on_one_node(request_of(spec), spec.arguments(), sys.executable)


def on_one_node(request: ResourceRequest, arguments: Sequence[str], python: str) -> list[str]:
    if request.ranks == 1:
        return [python, "-m", MODULE, *arguments]
    return [*torchrun(request, python), "--standalone", "-m", MODULE, *arguments]


def torchrun(request: ResourceRequest, python: str) -> list[str]:
    return [python, "-m", "torch.distributed.run", f"--nproc-per-node={request.ranks_per_node}"]


def limited(seconds: int | None) -> list[str]:
    """Begin of a command with a time limit: SIGTERM when it is reached, SIGKILL a while later."""
    if seconds is None:
        return []
    return ["timeout", "--preserve-status", f"--kill-after={SAVE_SECONDS}", str(seconds)]
