"""Whether this machine can isolate programs; if not, which settings to enable."""

import errno
import json
import platform
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from rondo.base.errors import Unavailable
from rondo.graders.sandbox.limits import SandboxLimits
from rondo.graders.sandbox.runs import run_script
from rondo.graders.sandbox.worker import SandboxWorker, WallRefused, WorkerLost

NAME = "user, mount, network and process namespaces with a filter of system calls"

_OLDEST = (5, 14)
"""First kernel version that counts processes per user namespace."""
_PROCESSES = 4
_CONTAINER = (
    "In a container start it with `--security-opt seccomp=unconfined --security-opt apparmor=unconfined` (Docker, "
    "Podman), or with a seccomp profile that allows unshare, mount, pivot_root and setns."
)

_PROBE = """
import json, os, socket

def refused(action):
    try:
        action()
    except OSError:
        return True
    return False

def fork_all():
    for count in range(16):
        try:
            if os.fork() == 0:
                import time
                time.sleep(60)
        except OSError:
            return count
    return 16

print(json.dumps({
    "files are hidden": refused(lambda: os.stat("/etc")) and refused(lambda: os.stat("/proc/self")),
    "the library is read-only": refused(lambda: open(os.path.dirname(os.__file__) + "/x", "w")),
    "sockets are refused": refused(socket.socket),
    "programs are refused": refused(lambda: os.execv("/proc/self/exe", ["x"])),
    "processes are few": fork_all() < 16,
    "nobody else is seen": os.getpid() == 2 and refused(lambda: os.kill(3000, 0)),
}))
"""


@dataclass(frozen=True)
class Isolation:
    available: bool
    about: str
    """Active isolation mechanisms, or the missing one and its remedy."""


@cache
def isolation() -> Isolation:
    """Builds the isolation once and tests it."""
    missing = _missing()
    return Isolation(not missing, missing or NAME)


def require() -> None:
    """Raises an error with the settings to enable if programs cannot be isolated; they never run without isolation."""
    found = isolation()
    if not found.available:
        raise Unavailable(f"Programs cannot be run here: {found.about}", code="no_sandbox")


def _missing() -> str:
    if sys.platform != "linux":
        return "the sandbox needs Linux. Run this part in a Linux machine or container."
    if platform.machine() not in ("x86_64", "aarch64"):
        return f"the sandbox knows x86-64 and 64-bit ARM, and this is {platform.machine()}."
    release = platform.release()
    if tuple(int("".join(filter(str.isdigit, part)) or 0) for part in release.split(".")[:2]) < _OLDEST:
        return f"the sandbox needs Linux {'.'.join(map(str, _OLDEST))} or later, and this is {release}."
    try:
        worker = SandboxWorker()
    except WallRefused as refused:
        return f"{refused.step}: {refused}. {advice(refused.number)}"
    except WorkerLost as error:
        return str(error)
    try:
        run = run_script(worker, _PROBE, b"", SandboxLimits(seconds=20, processes=_PROCESSES))
    except WorkerLost as error:
        return str(error)
    finally:
        worker.close()
    if not run.ok:
        return f"the probe of the walls failed: {run.errors.decode(errors='replace') or run.why}"
    open_walls = [wall for wall, holds in json.loads(run.output).items() if not holds]
    if "processes are few" in open_walls:
        return "processes cannot be limited: this is root with no other user to become. Run it as an ordinary user."
    return f"these walls do not hold: {', '.join(open_walls)}. {_CONTAINER}" if open_walls else ""


def advice(number: int, sysctls: Path = Path("/proc/sys")) -> str:
    """Settings to enable, derived from the current kernel settings."""
    switches = {
        "user/max_user_namespaces": ("0", "15000"),
        "kernel/unprivileged_userns_clone": ("0", "1"),
        "kernel/apparmor_restrict_unprivileged_userns": ("1", "0"),
    }
    found = [
        f"`sysctl -w {name.replace('/', '.')}={good}`"
        for name, (bad, good) in switches.items()
        if (sysctls / name).is_file() and (sysctls / name).read_text().strip() == bad
    ]
    if found:
        return f"Switch user namespaces on, as root: {', '.join(found)}."
    if number == errno.EACCES:
        return f"A folder of Python's cannot be read, or a security module forbids it. {_CONTAINER}"
    return _CONTAINER
