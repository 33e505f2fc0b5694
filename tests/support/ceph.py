"""A real S3 server on this machine: Ceph's gateway over one monitor and one store in memory. Signatures are checked."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx

from support.ports import free_port

PROGRAMS = ("ceph-mon", "ceph-osd", "ceph", "radosgw", "radosgw-admin", "monmaptool", "ceph-authtool")
KEY, SECRET = "rondo-test-key", "rondo-test-secret"
START_SECONDS = 120

CONFIG = """
[global]
fsid = {fsid}
mon initial members = a
mon host = [v1:127.0.0.1:{mon_port}]
public addr = 127.0.0.1
cluster addr = 127.0.0.1
ms bind msgr2 = false
auth cluster required = none
auth service required = none
auth client required = none
osd pool default size = 1
osd pool default min size = 1
osd pool default pg num = 4
osd pool default pgp num = 4
osd pool default pg autoscale mode = off
osd crush chooseleaf type = 0
osd objectstore = memstore
memstore device bytes = 1073741824
mon allow pool size one = true
mon max pg per osd = 2000
mon data avail crit = 1
mon data avail warn = 1
mon data = {folder}/mon
osd data = {folder}/osd
run dir = {folder}/run
admin socket = {folder}/run/$name.asok
pid file = {folder}/run/$name.pid
log file = {folder}/log/$name.log
keyring = {folder}/keyring
[client.rgw.a]
rgw frontends = beast endpoint=127.0.0.1:{port}
rgw thread pool size = 16
rgw dns name = localhost
"""


@dataclass(frozen=True)
class S3:
    url: str
    key: str = KEY
    secret: str = SECRET

    def environment(self) -> dict[str, str]:
        """What a client is told, and nothing of a real account."""
        return {
            "AWS_ENDPOINT_URL": self.url,
            "AWS_ACCESS_KEY_ID": self.key,
            "AWS_SECRET_ACCESS_KEY": self.secret,
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_EC2_METADATA_DISABLED": "true",
            "AWS_CONFIG_FILE": os.devnull,
            "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
        }


@contextlib.contextmanager
def ceph(folder: Path) -> Iterator[S3]:
    missing = [program for program in PROGRAMS if shutil.which(program) is None]
    assert not missing, f"no {', '.join(missing)} on the PATH; `make test-real` installs them (Ceph)"
    for name in ("mon", "osd", "run", "log"):
        (folder / name).mkdir(parents=True)
    port, config = free_port(), folder / "ceph.conf"
    config.write_text(CONFIG.format(fsid=uuid.uuid4(), mon_port=free_port(), port=port, folder=folder))
    monitor = next(line for line in config.read_text().splitlines() if "mon host" in line).partition(" = ")[2]
    run = _Commands(folder, config)
    run(
        "ceph-authtool",
        "-C",
        "keyring",
        "--gen-key",
        "-n",
        "mon.",
        "--cap",
        "mon",
        "allow *",
        configured=False,
    )
    fsid = config.read_text().partition("fsid = ")[2].split()[0]
    run("monmaptool", "--create", "--fsid", fsid, "--addv", "a", monitor, "monmap", configured=False)
    run("ceph-mon", "--mkfs", "-i", "a", "--monmap", "monmap", "--keyring", "keyring")
    with contextlib.ExitStack() as stack:
        stack.enter_context(run.daemon("ceph-mon", "-i", "a"))
        store = str(uuid.uuid4())
        _when_ready(run, "ceph", "osd", "new", store)
        run("ceph-osd", "-i", "0", "--mkfs", "--osd-uuid", store)
        _start_store(run, stack)
        gateway = stack.enter_context(run.daemon("radosgw", "-n", "client.rgw.a"))
        _wait(gateway, f"http://127.0.0.1:{port}", folder / "log")
        user = ("--uid=test", "--display-name=test", f"--access-key={KEY}", f"--secret={SECRET}")
        run("radosgw-admin", "user", "create", *user)
        yield S3(f"http://127.0.0.1:{port}")


def _when_ready(run: _Commands, *command: str) -> str:
    """A monitor that has just started may refuse a command that it accepts a moment later."""
    until = time.monotonic() + START_SECONDS
    while True:
        try:
            return run(*command)
        except AssertionError:
            if time.monotonic() > until:
                raise
            time.sleep(1)


class _Commands:
    def __init__(self, folder: Path, config: Path) -> None:
        self._folder, self._config = folder, config

    def __call__(self, program: str, *arguments: str, configured: bool = True) -> str:
        command = [program, *(["-c", str(self._config)] if configured else []), *arguments]
        done = subprocess.run(
            command, cwd=self._folder, capture_output=True, text=True, timeout=START_SECONDS
        )
        assert done.returncode == 0, f"{' '.join(command)}: {done.stderr[-2000:]}"
        return done.stdout

    @contextlib.contextmanager
    def daemon(self, program: str, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
        with (self._folder / "log" / f"{program}.out").open("wb") as out:
            command = [program, "-c", str(self._config), *arguments, "-f"]
            process = subprocess.Popen(command, cwd=self._folder, stdout=out, stderr=out)
        try:
            yield process
        finally:
            process.kill()  # its store is in memory: there is nothing to save
            process.wait(30)


def _start_store(run: _Commands, stack: contextlib.ExitStack) -> None:
    """Now and then one ends at once ('wrong fsid'), when it speaks to the monitor before it knows the cluster."""
    for _ in range(8):
        store = stack.enter_context(run.daemon("ceph-osd", "-i", "0"))
        while store.poll() is None:
            if " 1 up" in _when_ready(run, "ceph", "osd", "stat"):
                return
            time.sleep(0.1)
    raise AssertionError("Ceph's store did not come up")


def _wait(gateway: subprocess.Popen[bytes], url: str, logs: Path) -> None:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline and gateway.poll() is None:
        with contextlib.suppress(httpx.TransportError):
            if httpx.get(url, timeout=5).status_code == 200:
                return
        time.sleep(0.1)
    said = "\n".join(f"{file.name}: {file.read_text(errors='replace')[-1000:]}" for file in logs.iterdir())
    raise AssertionError(f"Ceph's gateway did not come up:\n{said}")
