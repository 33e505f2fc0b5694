"""Batch script of an attempt: resources as options of sbatch, and ranks through torchrun, mpirun or srun."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence

from rondo.control.config import SlurmConfig
from rondo.control.jobs.launchers.command import MODULE, WAIT, on_one_node, torchrun
from rondo.control.jobs.request import ResourceRequest
from rondo.jobs.health import FAULTY

ABANDONED = "abandoned"
"""File of an attempt that counts as never started: its batch job ends at once."""
RENDEZVOUS = """\
first=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
MASTER_ADDR=$(scontrol show node -o "$first" | sed -n 's/.* NodeAddr=\\([^ ]*\\).*/\\1/p')
MASTER_PORT=$((20000 + SLURM_JOB_ID % 20000))
export MASTER_ADDR=${MASTER_ADDR:-$first} MASTER_PORT
"""
ROOT = '[ "$(id -u)" != 0 ] || export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1\n'
BEGIN = f"""\
[ ! -e {ABANDONED} ] || exit 0
rm -rf code beats health-*.json
: > begun
"""
"""A requeued job runs the script again."""


def script_of(
    arguments: Sequence[str],
    request: ResourceRequest,
    config: SlurmConfig,
    name: str,
    comment: str,
    avoid: Sequence[str] = (),
) -> str:
    """The script that runs `rondo` with these arguments, on other nodes than those in `avoid`."""
    lines = [f"#SBATCH {option}" for option in options(request, config, name, comment)]
    if avoid:
        lines.append(f"#SBATCH --exclude={','.join(avoid)}")
    check = _health(request, config)
    body = BEGIN + (f"{check} || exit {FAULTY}\n" if check else "") + _setup(request, config)
    body += WAIT.format(command=_command(arguments, request, config))
    body += f"[ $code = 0 ] || {check}\n" if check else ""
    return "\n".join(["#!/bin/sh", *lines, "", body + "exit $code\n"])


def options(request: ResourceRequest, config: SlurmConfig, name: str, comment: str) -> list[str]:
    tasks, cpus = request.ranks_per_node, request.cpus_per_rank
    if config.start == "torchrun":
        tasks, cpus = 1, request.cpus_per_node
    found = [
        f"--job-name={name}",
        f"--comment={comment}",
        "--output=output.log",
        "--open-mode=append",
        "--requeue",
        "--export=ALL",
        f"--nodes={request.nodes}",
        f"--ntasks-per-node={tasks}",
        f"--cpus-per-task={cpus}",
        f"--signal=B:TERM@{round(config.grace_seconds)}",
    ]
    if request.gpus_per_node:
        found.append(f"--gres={config.gres}:{request.gpus_per_node}")
    if request.memory:
        found.append(f"--mem={request.memory}M")
    if request.time_limit:
        minutes, seconds = divmod(request.time_limit, 60)
        found.append(f"--time={minutes}:{seconds:02d}")
    given = {"partition": config.partition, "account": config.account, "qos": config.qos}
    found += [f"--{option}={value}" for option, value in given.items() if value]
    return [*found, *config.options]


def _health(request: ResourceRequest, config: SlurmConfig) -> str:
    """Command that checks the GPUs of each node."""
    if not request.gpus:
        return ""
    python = shlex.quote(config.python or sys.executable)
    nodes = f"srun --ntasks={request.nodes} --ntasks-per-node=1 " if request.nodes > 1 else ""
    return f'{nodes}{python} -m rondo.jobs.health "$PWD"'


def _setup(request: ResourceRequest, config: SlurmConfig) -> str:
    if request.ranks == 1 or (request.nodes == 1 and config.start == "torchrun"):
        return ""
    return RENDEZVOUS + (ROOT if config.start == "mpirun" else "")


def _command(arguments: Sequence[str], request: ResourceRequest, config: SlurmConfig) -> str:
    python = config.python or sys.executable
    words = ["-m", MODULE, *arguments]
    if request.ranks == 1 or (request.nodes == 1 and config.start == "torchrun"):
        return shlex.join(on_one_node(request, arguments, python))
    if config.start == "mpirun":
        # By default, Open MPI kills ranks one second after a SIGTERM, before they have saved.
        wait = ["--mca", "odls_base_sigkill_timeout", str(round(config.grace_seconds))]
        ranks = ["-n", str(request.ranks), "--npernode", str(request.ranks_per_node)]
        return shlex.join(["mpirun", *ranks, *wait, "-x", "MASTER_ADDR", "-x", "MASTER_PORT", python, *words])
    if config.start == "srun":
        return shlex.join(["srun", "--kill-on-bad-exit=1", python, *words])
    each = [*torchrun(request, python), f"--nnodes={request.nodes}"]
    where = '--node-rank="$SLURM_PROCID" --master-addr="$MASTER_ADDR" --master-port="$MASTER_PORT"'
    agent = f"exec {shlex.join(each)} {where} {shlex.join(words)}"
    return shlex.join(["srun", f"--ntasks={request.nodes}", "--ntasks-per-node=1", "sh", "-c", agent])
