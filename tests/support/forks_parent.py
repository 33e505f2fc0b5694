"""The process that forks: `python forks_parent.py FOLDER`, where the client `python` is and the socket comes to be.

It has one thread, and ends with its standard input.
"""

from __future__ import annotations

import contextlib
import fcntl
import gc
import importlib
import marshal
import os
import pkgutil
import selectors
import signal
import socket
import struct
import sys
from array import array
from pathlib import Path
from typing import NamedTuple, NoReturn

from support.forks_child import become

MORE = ("openai", "openai.resources.chat.completions")
"""What commands and programs import later."""
WITHOUT = ("rondo.control.migrations.", "rondo.ops.triton.kernels.", "rondo.weights.vllm_plugin")
"""Modules that something else imports, or that need what is not there."""
CREDENTIALS = struct.Struct("3i")


class Question(NamedTuple):
    """What a client says of itself; `files` are the numbers of its open files."""

    arguments: list[str]
    environment: dict[str, str]
    folder: str
    files: list[int]
    ignored: list[int]


class Parent:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.connections: dict[int, socket.socket] = {}
        """By fork, until its client is told."""
        self.selector = selectors.DefaultSelector()

    def serve(self) -> None:
        ended, tell = os.pipe()
        os.set_blocking(tell, False)
        signal.set_wakeup_fd(tell, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        listening = socket.socket(socket.AF_UNIX)
        listening.bind(str(self.folder / "new"))
        listening.listen(64)
        (self.folder / "new").rename(self.folder / "socket")
        self.selector.register(0, selectors.EVENT_READ, lambda: self._end())
        self.selector.register(ended, selectors.EVENT_READ, lambda: self._reap(os.read(ended, 4096)))
        self.selector.register(listening, selectors.EVENT_READ, lambda: self._fork(listening.accept()[0]))
        while True:
            for key, _ in self.selector.select():
                key.data()

    def _fork(self, connection: socket.socket) -> None:
        try:
            asked, files = _received(connection)
        except EOFError:  # the client was killed
            connection.close()
            return
        client = CREDENTIALS.unpack(
            connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, CREDENTIALS.size)
        )[0]
        pid = os.fork()
        if pid == 0:
            _take(files, asked.files)
            _have_parent_of(client)
            program = str(self.folder / "python")
            become(asked.arguments, asked.environment, asked.folder, asked.ignored, program)
        for file in files:
            os.close(file)
        link = self.folder / str(client)
        link.unlink(missing_ok=True)
        link.symlink_to(str(pid))
        self.connections[pid] = connection
        self.selector.register(connection, selectors.EVENT_READ, lambda: self._kill(pid))
        _tell(connection, pid)

    def _reap(self, _: bytes) -> None:
        while self.connections:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                return
            connection = self.connections.pop(pid)
            with contextlib.suppress(KeyError):  # its client was killed
                self.selector.unregister(connection)
            _tell(connection, os.waitstatus_to_exitcode(status))
            connection.close()

    def _kill(self, pid: int) -> None:
        """Whose client was killed."""
        self.selector.unregister(self.connections[pid])
        os.kill(pid, signal.SIGKILL)

    def _end(self) -> NoReturn:
        for pid in self.connections:
            os.kill(pid, signal.SIGKILL)
        for pid in self.connections:
            os.waitpid(pid, 0)
        os._exit(0)


def _received(connection: socket.socket) -> tuple[Question, list[int]]:
    """And the files that came with it."""
    files = array("i")
    head, rights, _, _ = connection.recvmsg(8, socket.CMSG_SPACE(250 * files.itemsize))
    for _, _, data in rights:
        files.frombytes(data)
    data = b""
    while len(data) < int.from_bytes(head, "big"):
        part = connection.recv(1 << 20)
        if not part:
            raise EOFError
        data += part
    if not head:
        raise EOFError
    return Question(*marshal.loads(data)), list(files)


def _take(files: list[int], names: list[int]) -> None:
    """In the fork: these files under these numbers, and no others."""
    top = max([*files, *names]) + 1
    moved = [fcntl.fcntl(file, fcntl.F_DUPFD, top) for file in files]
    os.closerange(0, top)
    for file, name in zip(moved, names, strict=True):
        os.dup2(file, name)
        os.close(file)
    os.closerange(top, top + 250)


def _have_parent_of(client: int) -> None:
    """In the fork: its parent is that of its client, as long as the client lives. Its own children have the fork."""
    own, real = os.getpid(), os.getppid

    def parent() -> int:
        if os.getpid() != own:
            return real()
        try:
            return int(Path(f"/proc/{client}/stat").read_text().rpartition(")")[2].split()[1])
        except OSError:  # the client was killed
            return 1

    os.getppid = parent


def _tell(connection: socket.socket, number: int) -> None:
    with contextlib.suppress(OSError):
        connection.sendall(f"{number}\n".encode())


def main(folder: Path) -> None:
    sys.executable = str(folder / "python")  # some modules keep it
    for name in MORE:
        importlib.import_module(name)
    rondo = importlib.import_module("rondo")
    for module in pkgutil.walk_packages(rondo.__path__, "rondo."):
        if not module.name.startswith(WITHOUT) and not module.name.endswith("__main__"):
            importlib.import_module(module.name)
    gc.collect()
    gc.freeze()
    Parent(folder).serve()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
