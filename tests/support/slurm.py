"""A real Slurm on this machine: a controller and nodes with two cores each, whose keys are of this test alone."""

from __future__ import annotations

import contextlib
import getpass
import os
import shutil
import signal
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
SlurmdSpoolDir={folder}/spool/%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SwitchType=switch/none
MpiDefault=none
ReturnToService=2
SlurmdTimeout=10
KillWait=2
UnkillableStepTimeout=10
GresTypes=gpu
SlurmdParameters=config_overrides
SchedulerParameters=sched_interval=1,sched_min_interval=0
AccountingStorageType=accounting_storage/none
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""
NODE = """\
NodeName={name} NodeHostname={host} NodeAddr=127.0.0.1 Port={port} CPUs=2 Boards=1 SocketsPerBoard=1 CoresPerSocket=2 \
ThreadsPerCore=1 Gres=gpu:{gpus} State=UNKNOWN
"""


class Cluster:
    """Daemons of a cluster, which a test may kill and start again."""

    def __init__(self, folder: Path, nodes: int, gpus: int) -> None:
        self.folder, self.nodes = folder, [f"n{number + 1}" for number in range(nodes)]
        path = f"{os.environ['PATH']}:{SYSTEM}"
        missing = [program for program in PROGRAMS if shutil.which(program, path=path) is None]
        assert not missing, f"no {', '.join(missing)} on the PATH; `make test-real` installs them (Slurm)"
        for name in ("state", "spool", "munge", "log"):
            (folder / name).mkdir(mode=0o755)
        self.config = folder / "slurm.conf"
        self.environment = os.environ | {"PATH": path, "SLURM_CONF": str(self.config)}
        host = socket.gethostname().partition(".")[0]
        settings = {"host": host, "user": getpass.getuser(), "port": free_port()}
        text = CONFIG.format(folder=folder, **settings)
        for name in self.nodes:
            text += NODE.format(name=name, host=host, port=free_port(), gpus=gpus)
        self.config.write_text(text)
        (folder / "gres.conf").write_text("".join(self._devices(gpus)))
        self._daemons: dict[str, subprocess.Popen[bytes]] = {}

    def _devices(self, gpus: int) -> Iterator[str]:
        """Lines of gres.conf. The GPUs are devices like /dev/null: Slurm accepts no plain file."""
        for name in self.nodes:
            for number in range(gpus):
                device = self.folder / f"gpu-{name}-{number}"
                os.mknod(device, 0o20666, os.makedev(1, 3))
                yield f"NodeName={name} Name=gpu File={device}\n"

    def start(self) -> None:
        key = self.folder / "munge/key"
        key.write_bytes(os.urandom(1024))
        key.chmod(0o400)
        names = ("socket", "pid-file", "log-file", "seed-file")
        munge = [f"--{name}={self.folder}/munge/{name}" for name in names]
        self._start("munged", "munged", "--foreground", "--force", f"--key-file={key}", *munge)
        wait_until((self.folder / "munge/socket").exists)
        self.start_controller("-c")
        for name in self.nodes:
            self.start_node(name)
        wait_until(self.idle)

    def idle(self) -> bool:
        return _said(("sinfo", "-h", "-o", "%T"), self.environment) == "idle"

    def start_controller(self, *more: str) -> None:
        self._start("slurmctld", "slurmctld", "-D", "-f", str(self.config), *more)

    def start_node(self, name: str) -> None:
        self._start(name, "slurmd", "-D", "-f", str(self.config), "-N", name)

    def kill(self, name: str) -> None:
        """Kills a node with everything that runs there, or `slurmctld`."""
        process = self._daemons.pop(name)
        process.kill()
        process.wait(20)
        if name not in self.nodes:
            return
        for folder in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                told = (folder / "environ").read_bytes().split(b"\0")
                step = (folder / "cmdline").read_bytes().startswith(b"slurmstepd")
                here = f"SLURMD_NODENAME={name}".encode() in told
                if f"SLURM_CONF={self.config}".encode() in told and (here or step):
                    os.kill(int(folder.name), signal.SIGKILL)

    def close(self) -> None:
        for process in reversed(list(self._daemons.values())):
            process.terminate()
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait(20)

    def _start(self, name: str, *command: str) -> None:
        with (self.folder / "log" / name).open("ab") as out:
            self._daemons[name] = subprocess.Popen(command, env=self.environment, stdout=out, stderr=out)


@contextlib.contextmanager
def cluster(folder: Path, nodes: int = 1, gpus: int = 0) -> Iterator[Cluster]:
    """`folder` may not be long: it holds sockets."""
    found = Cluster(folder, nodes, gpus)
    try:
        found.start()
        yield found
    finally:
        found.close()


@contextlib.contextmanager
def slurm(folder: Path) -> Iterator[dict[str, str]]:
    """Environment of the commands of a cluster with one node."""
    with cluster(folder) as found:
        yield found.environment


def _said(command: tuple[str, ...], environment: dict[str, str]) -> str:
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=30)
    return done.stdout.strip()
