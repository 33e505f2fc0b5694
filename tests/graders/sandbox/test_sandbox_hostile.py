"""Programs that attack: none gets through, the machine stays well, and the next program runs as if nothing had been."""

from __future__ import annotations

import os
import secrets
import socket
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

import psutil
import pytest

from graders.hostile import PRELUDE, PROGRAMS
from rondo.graders.sandbox import Sandbox, SandboxLimits, SandboxRun
from rondo.graders.sandbox.isolation import isolation
from support.waiting import scaled, wait_until

pytestmark = pytest.mark.skipif(not isolation().available, reason=isolation().about)

LIMITS = SandboxLimits(
    seconds=scaled(10), cpu_seconds=1, memory=256 << 20, disk=2 << 20, files=32, processes=8, output=64 << 10
)
SHORT = replace(LIMITS, seconds=0.7)
ENDED_FOR = {
    "endless computing": "cpu",
    "endless computing without the signal": "cpu",
    "CPU time that is not counted": "cpu",
    "endless output": "output",
    "endless errors": "output",
    "endless sleep": "wall",
    "sleep without signals": "wall",
    "a process that stops itself": "wall",
    "an end that does not end": "wall",
    "a thread that does not end": "wall",
    "threads": "wall",
}
ANY_END = {
    *("fork bomb", "fork bomb that goes on where it fails", "a crash of Python", "names without end"),
    *(name for name in PROGRAMS if name.startswith("memory")),
}
"""Which of its processes, or of the limits, ends it first is chance."""
OR = {"cpu": "busy"}
"""What may end it on a machine with other work."""


@dataclass
class Ground:
    """What programs are after."""

    secret: Path
    server: socket.socket
    victim: subprocess.Popen[bytes]
    name: str

    def fill(self, program: str) -> str:
        port = self.server.getsockname()[1]
        filled = program.format(secret=self.secret, port=port, victim=self.victim.pid, name=self.name)
        return PRELUDE + filled

    def check(self) -> None:
        with pytest.raises(BlockingIOError):
            self.server.accept()
        assert self.victim.poll() is None
        for folder in ("/", "/tmp", "/dev", "/dev/shm", "/box", os.path.dirname(os.__file__), Path.home()):
            assert not os.path.lexists(os.path.join(folder, self.name))


@pytest.fixture(scope="module")
def ground(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ground]:
    secret = tmp_path_factory.mktemp("secret") / "key"
    secret.write_text("a secret")
    secret.chmod(0o644)
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"]) as victim,
    ):
        server.setblocking(False)
        yield Ground(secret, server, victim, f"breach-{secrets.token_hex(6)}")
        victim.kill()


@pytest.fixture(scope="module")
def sandbox() -> Iterator[Sandbox]:
    with pytest.MonkeyPatch.context() as patch, Sandbox(1) as sandbox:
        patch.setenv("RONDO_TEST_KEY", "a secret of the environment")
        yield sandbox


@pytest.mark.parametrize("name", PROGRAMS)
def test_nothing_gets_through(name: str, sandbox: Sandbox, ground: Ground) -> None:
    ended_for = ENDED_FOR.get(name, "exit")
    limits = SHORT if ended_for == "wall" else LIMITS
    run = sandbox.run(ground.fill(PROGRAMS[name]), limits=limits)
    assert b"BREACH" not in run.output
    assert len(run.output) <= limits.output
    assert name in ANY_END or run.why in (ended_for, OR.get(ended_for)), run.errors.decode()
    ground.check()
    check_well(sandbox)


def check_well(sandbox: Sandbox) -> None:
    """The same worker is there, without children but its own, and does its work."""
    [worker] = sandbox._idle
    [inner] = psutil.Process(worker.pid).children(recursive=True)
    assert inner.num_fds() <= 8
    following = sandbox.run(
        "import os, json, random; print(os.listdir(), random.random() < 1, input())", b"4\n", LIMITS
    )
    assert (following.output, following.code) == (b"[] True 4\n", 0), following.errors


STUBBORN = ["fork bomb that goes on where it fails", "sleep without signals", "daemons", "endless computing"]
"""Programs that do not end by themselves, nor by a kind word."""
STAYS = "\ntime.sleep(1000)\n"
"""After a program whose first process would end at once, so that its processes are there to be seen."""
OWNER = """
import sys
from rondo.graders.sandbox import SandboxLimits, Sandbox
Sandbox(1).run(sys.stdin.read(), limits=SandboxLimits(seconds=60, cpu_seconds=60))
"""


@pytest.mark.parametrize("name", STUBBORN)
def test_they_end_with_whoever_had_them_run(name: str, ground: Ground) -> None:
    """Killed, and so without a word to anybody."""
    program = (ground.fill(PROGRAMS[name]) + STAYS).encode()
    with subprocess.Popen([sys.executable, "-c", OWNER], stdin=subprocess.PIPE) as owner:
        assert owner.stdin is not None
        owner.stdin.write(program)
        owner.stdin.close()
        family = psutil.Process(owner.pid)
        wait_until(lambda: len(family.children(recursive=True)) > 2)
        started = family.children(recursive=True)
        owner.kill()
    assert not psutil.wait_procs(started, timeout=scaled(20))[1]
    ground.check()


@pytest.mark.parametrize("name", STUBBORN)
def test_they_end_with_their_worker_and_the_next_one_is_well(name: str, ground: Ground) -> None:
    with Sandbox(1) as sandbox, ThreadPoolExecutor(1) as threads:
        assert sandbox.run("print(1)").ok
        program = ground.fill(PROGRAMS[name]) + STAYS
        running, family = caught(sandbox, threads, program)
        family[0].kill()
        assert b"BREACH" not in running.result(scaled(60)).output, "it ran once more"
        assert not psutil.wait_procs(family, timeout=scaled(20))[1]
        ground.check()
        assert sandbox.run("print(1)").ok  # makes another worker where the program had ended before
        check_well(sandbox)


def caught(
    sandbox: Sandbox, threads: ThreadPoolExecutor, program: str
) -> tuple[Future[SandboxRun], list[psutil.Process]]:
    """The program while it runs, and the worker with all its children. One that has ended before they are seen, as may
    happen on a busy machine, runs again."""
    for _ in range(20):
        worker = psutil.Process(sandbox._idle[0].pid)
        running = threads.submit(sandbox.run, program, limits=replace(LIMITS, seconds=scaled(3)))
        wait_until(lambda: running.done() or len(worker.children(recursive=True)) > 1)  # noqa: B023 waited for here
        children = worker.children(recursive=True)
        if len(children) > 1:
            return running, [worker, *children]
        assert b"BREACH" not in running.result().output
    raise AssertionError("the program always ended before its processes were seen")


def test_there_are_enough_of_them() -> None:
    assert len(PROGRAMS) >= 40


def test_a_program_finds_nothing_of_the_one_before(sandbox: Sandbox) -> None:
    half = secrets.token_hex(8)
    before = f"key = '{half}' + '-left'; keep = [key * 3 for _ in range(1000)]; print(len(key), input())"
    assert sandbox.run(before, f"{half}-left".encode()).ok
    look = f"""
import ctypes, gc
wanted = '{half}' + '-left'
found = [each for each in gc.get_objects() if isinstance(each, dict) and 'keep' in each and 'key' in each]
around = ctypes.string_at(id(found) & ~0xFFF, 4096)
print('BREACH' if found or (wanted.encode() in around) else 'nothing')
"""
    assert sandbox.run(look).output == b"nothing\n"


def test_ten_programs_beside_each_other_do_not_meet(tmp_path: Path) -> None:
    """Files, processes and kernel objects of one are not another's."""
    meet = "import os, time\nopen('met', 'x').close(); time.sleep(0.05); print(os.listdir(), os.getpid())"
    with Sandbox(2) as sandbox, ThreadPoolExecutor(4) as threads:
        runs = list(threads.map(lambda _: sandbox.run(meet), range(10)))
    assert {run.output for run in runs} == {b"['met'] 2\n"}
