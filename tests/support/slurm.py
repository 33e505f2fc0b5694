"""A real Slurm on this machine: one controller and one node with two cores, whose keys are of this test alone."""

from __future__ import annotations

import contextlib
import getpass
import os
import shutil
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

from support.ports import free_port
from support.waiting import wait_until

PROGRAMS = ("munged", "slurmctld", "slurmd", "srun", "scancel", "sinfo")
SYSTEM = "/usr/local/sbin:/usr/sbin:/sbin"
"""Where daemons are, which not every user has on the PATH."""

CONFIG = """
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmUser={user}
SlurmdUser={user}
SlurmctldPort={port}
AuthType=auth/munge
CredType=cred/munge
AuthInfo=socket={folder}/munge/socket
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SwitchType=switch/none
MpiDefault=none
ReturnToService=2
SlurmdParameters=config_overrides
SchedulerParameters=sched_interval=1,sched_min_interval=0
AccountingStorageType=accounting_storage/none
NodeName=n1 NodeHostname={host} NodeAddr=127.0.0.1 Port={node} CPUs=2 Boards=1 SocketsPerBoard=1 CoresPerSocket=2 \
ThreadsPerCore=1 State=UNKNOWN
PartitionName=main Nodes=n1 Default=YES MaxTime=INFINITE State=UP
"""


@contextlib.contextmanager
def slurm(folder: Path) -> Iterator[dict[str, str]]:
    """What its commands need in their environment. `folder` may not be long: it holds sockets."""
    path = f"{os.environ['PATH']}:{SYSTEM}"
    missing = [program for program in PROGRAMS if shutil.which(program, path=path) is None]
    assert not missing, f"no {', '.join(missing)} on the PATH; `make test-real` installs them (Slurm)"
    for name in ("state", "spool", "munge", "log"):
        (folder / name).mkdir(mode=0o755)
    key, host = folder / "munge/key", socket.gethostname().partition(".")[0]
    key.write_bytes(os.urandom(1024))
    key.chmod(0o400)
    settings = {"host": host, "user": getpass.getuser(), "port": free_port(), "node": free_port()}
    config = folder / "slurm.conf"
    config.write_text(CONFIG.format(folder=folder, **settings))
    environment = os.environ | {"PATH": path, "SLURM_CONF": str(config)}
    munge = [f"--{name}={folder}/munge/{name}" for name in ("socket", "pid-file", "log-file", "seed-file")]
    with contextlib.ExitStack() as stack:

        def start(*command: str) -> None:
            stack.enter_context(_running(command, folder / "log" / command[0], environment))

        start("munged", "--foreground", "--force", f"--key-file={key}", *munge)
        wait_until((folder / "munge/socket").exists)
        start("slurmctld", "-D", "-c", "-f", str(config))
        start("slurmd", "-D", "-f", str(config), "-N", "n1")
        wait_until(lambda: _said(("sinfo", "-h", "-o", "%T"), environment) == "idle")
        yield environment


@contextlib.contextmanager
def _running(command: tuple[str, ...], log: Path, environment: dict[str, str]) -> Iterator[None]:
    with log.open("wb") as out:
        process = subprocess.Popen(command, env=environment, stdout=out, stderr=out)
    try:
        yield
    finally:
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(20)


def _said(command: tuple[str, ...], environment: dict[str, str]) -> str:
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=30)
    return done.stdout.strip()
