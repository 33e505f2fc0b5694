"""Owner's side of a worker process that runs programs in cages."""

import array
import contextlib
import itertools
import json
import select
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rondo.base.errors import Unavailable
from rondo.base.process import start
from rondo.graders.sandbox.limits import SandboxLimits

_FOLDER = Path(__file__).parent
_START = (
    "import sys; sys.path.insert(0, sys.argv[1]); from inside.zygote import main; "
    "del sys.path[0]; main(int(sys.argv[2]), sys.argv[3])"
)
_START_SECONDS = 30.0
GRACE_SECONDS = 10.0
"""Seconds after a program's limit in which its end must be reported; after that the worker counts as lost."""
_ENVIRONMENT = {
    "HOME": "/box",
    "TMPDIR": "/box",
    "PATH": "",
    "LANG": "C.UTF-8",
    "PYTHONHASHSEED": "0",
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MALLOC_ARENA_MAX": "2",
}
"""Complete environment: no variable of this process is passed on. The order of sets is the same in every worker."""


class WorkerLost(Unavailable):
    """The sandbox's worker ended or is silent; the program has no result."""


class WorkerEnded(WorkerLost):
    """The worker was killed from outside; a program cannot kill it."""


class WorkerSilent(WorkerLost):
    """The worker is running and does not respond."""


class WallRefused(Unavailable):
    """The machine refuses a step of the isolation."""

    def __init__(self, step: str, number: int, text: str) -> None:
        super().__init__(text)
        self.step, self.number = step, number


@dataclass(frozen=True)
class Ended:
    why: str
    """`exit`, or the reason for its end: `wall`, `busy`, `cpu`, `memory`, `killed`; `failed` if its cage could not be
    made."""
    code: int
    cpu_seconds: float
    text: str


class SandboxWorker:
    """Used by one thread at a time. Cages may run concurrently."""

    def __init__(self, packages: Sequence[str] = ()) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._control = ours
        self._numbers = itertools.count()
        self._ended: dict[int, Ended] = {}
        with theirs:
            self._process = start(
                [
                    *(sys.executable, "-S", "-s", "-P", "-c", _START),
                    *(str(_FOLDER), str(theirs.fileno()), json.dumps(list(packages))),
                ],
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                env=_ENVIRONMENT,
                cwd="/",
            )
        try:
            self._wait_until_ready()
        except BaseException:
            self.close()
            raise

    @property
    def pid(self) -> int:
        return self._process.pid

    def fileno(self) -> int:
        return self._control.fileno()

    def start(self, role: str, limits: SandboxLimits, handles: Sequence[int]) -> int:
        """Starts a cage with `handles` as the program's descriptors 0, 1, 2 and so on; returns the id of the cage."""
        number = next(self._numbers)
        times = {"wall": limits.seconds, "longest": limits.longest}
        asked = {"start": number, "role": role, "limits": limits.of_cage()} | times
        self._send(asked, handles)
        return number

    def kill(self, number: int) -> None:
        if number not in self._ended:
            self._send({"kill": number})

    def ended(self, number: int) -> Ended | None:
        return self._ended.get(number)

    def take(self, number: int) -> Ended:
        """Result of a cage that has ended; can be taken once."""
        return self._ended.pop(number)

    def hear(self) -> None:
        """Receives one message, which must be available."""
        told = self._received()
        if "ended" not in told:
            raise WorkerLost(f"a sandbox's worker failed: {told.get('failed', told)}")
        self._ended[told["ended"]] = Ended(told["why"], told["code"], told["cpu"], told["text"])

    def wait(self, number: int, limits: SandboxLimits) -> None:
        deadline = time.monotonic() + limits.longest + GRACE_SECONDS
        while number not in self._ended:
            self.wait_for_message(deadline)
            self.hear()

    def wait_for_message(self, deadline: float) -> None:
        poll = select.poll()
        poll.register(self._control, select.POLLIN)
        if not poll.poll(max(0.0, deadline - time.monotonic()) * 1000):
            raise WorkerSilent("a sandbox's worker is silent.")

    def alive(self) -> bool:
        """Whether an idle worker is running: it sends no messages, so a readable socket means its end."""
        poll = select.poll()
        poll.register(self._control, select.POLLIN)
        return not poll.poll(0)

    def leave(self) -> None:
        """Closes a forked child's copy of the socket; the worker ends when all copies are closed."""
        self._control.close()

    def close(self) -> None:
        """Ends the worker and every cage; returns after their end."""
        self._control.close()
        try:
            self._process.wait(GRACE_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _wait_until_ready(self) -> None:
        self.wait_for_message(time.monotonic() + _START_SECONDS)
        told = self._received()
        if "refused" in told:
            raise WallRefused(told["refused"], told["number"], told["text"])

    def _send(self, message: Mapping[str, Any], handles: Sequence[int] = ()) -> None:
        carried = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", handles))] if handles else []
        try:
            self._control.sendmsg([json.dumps(message).encode()], carried)
        except OSError as error:
            raise WorkerEnded(f"a sandbox's worker has ended ({self._code()}).") from error

    def _received(self) -> dict[str, Any]:
        try:
            message = self._control.recv(1 << 16)
        except OSError:
            message = b""
        if not message:
            raise WorkerEnded(f"a sandbox's worker has ended ({self._code()}).")
        told: dict[str, Any] = json.loads(message)
        return told

    def _code(self) -> str:
        with contextlib.suppress(subprocess.TimeoutExpired):
            return f"code {self._process.wait(1)}"
        return "still there"
