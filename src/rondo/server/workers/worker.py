"""Work that must not hold up the event loop and that can be stopped: done in a child process of the server.

The event loop's thread shares the interpreter's lock with every other thread, and a call into a C or Rust function,
such as parsing a body of many megabytes, does not release it. A child process has a lock of its own, returns its memory
to the system when it ends, and can be killed when it exceeds its time.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import pickle
import resource
import socket
import struct
import subprocess
import sys
from collections.abc import Callable
from typing import Any

from rondo.base.errors import RondoError, Unavailable
from rondo.base.process import start

HEADER = struct.Struct("!Q")
LARGE = 4 << 20
"""A process that was sent more than so many bytes ends with its work, so that its memory is returned."""
SENT = 1 << 20
"""Bytes per write."""
IDLE_SECONDS = 60.0
"""An idle process ends after this time."""


class OutOfTime(RondoError):
    """The work took longer than its limit and was killed."""


class OutOfMemory(RondoError):
    """The work needed more memory than a child process may have."""


class Workers:
    """At most `most` child processes, started on demand; further work waits for its turn. `memory` is how many bytes of
    data each may hold, and `nice` how far its priority is below the server's."""

    def __init__(self, most: int = 2, memory: int = 2 << 30, nice: int = 0) -> None:
        self._turns = asyncio.Semaphore(most)
        self._limits = (memory, nice)
        self._idle: list[_Child] = []

    async def run(self, work: Callable[..., Any], *args: object, data: bytes = b"", seconds: float) -> Any:
        """The result of `work(data, *args)`, a function of a module. `seconds` starts when the work does."""
        message = pickle.dumps((work, args, seconds), pickle.HIGHEST_PROTOCOL)
        async with self._turns:
            child = self._idle.pop() if self._idle else await _Child.start(*self._limits)
            try:
                async with asyncio.timeout(seconds):
                    kind, value = await child.ask(message, data)
            except TimeoutError:
                raise OutOfTime(f"it took longer than {seconds:g} s.") from None
            except (ConnectionError, asyncio.IncompleteReadError):
                raise OutOfMemory(
                    "the process that did it was killed: out of memory or of CPU time."
                ) from None
            else:
                if len(message) + len(data) <= LARGE:
                    self._keep(child)
            finally:
                if child not in self._idle:
                    child.end()
        if kind == "ok":
            return value
        if kind == "error":
            raise value
        raise RuntimeError(f"work in a child process failed:\n{value}")

    def _keep(self, child: _Child) -> None:
        self._idle.append(child)

        def retire() -> None:
            if child in self._idle:
                self._idle.remove(child)
                child.end()

        child.retired_at(IDLE_SECONDS, retire)


class _Child:
    def __init__(
        self, process: subprocess.Popen[bytes], reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self._process = process
        self._reader = reader
        self._writer = writer
        self._timer: asyncio.TimerHandle | None = None

    @classmethod
    async def start(cls, memory: int, nice: int) -> _Child:
        ours, process = _spawn(memory, nice)
        reader, writer = await asyncio.open_connection(sock=ours, limit=1 << 20)
        return cls(process, reader, writer)

    async def ask(self, message: bytes, data: bytes) -> tuple[str, Any]:
        if self._timer is not None:
            self._timer.cancel()
        self._writer.write(HEADER.pack(len(message)) + message + HEADER.pack(len(data)))
        for at in range(0, len(data), SENT):
            self._writer.write(data[at : at + SENT])
            await self._writer.drain()
        (size,) = HEADER.unpack(await self._reader.readexactly(HEADER.size))
        answer = await self._reader.readexactly(size)
        # In a thread where it is large: models are restored by Python code, which lets other threads run in between.
        kind, value = (
            await asyncio.to_thread(pickle.loads, answer) if size > 1 << 16 else pickle.loads(answer)
        )
        return kind, value

    def retired_at(self, seconds: float, retire: Callable[[], None]) -> None:
        self._timer = asyncio.get_running_loop().call_later(seconds, retire)

    def end(self) -> None:
        self._process.kill()
        self._writer.close()
        # The kernel frees gigabytes before the process can be reaped.
        asyncio.get_running_loop().run_in_executor(None, self._process.wait)


def _spawn(memory: int, nice: int) -> tuple[socket.socket, subprocess.Popen[bytes]]:
    ours, theirs = socket.socketpair()
    with theirs:
        code = f"from rondo.server.workers.worker import serve; serve({theirs.fileno()}, {memory}, {nice})"
        try:
            # Errors come back as answers; on its standard error a parser out of memory would write pages.
            process = start(
                [sys.executable, "-P", "-c", code], stderr=subprocess.DEVNULL, pass_fds=[theirs.fileno()]
            )
        except OSError as error:
            ours.close()
            raise Unavailable(f"no child process can be started: {error.strerror}. Try again.") from error
    return ours, process


# From here on: in the child process.


def serve(descriptor: int, memory: int, nice: int) -> None:
    """Does one piece of work after another until the server closes its end."""
    os.nice(nice)
    # Not of address space: imported libraries reserve gigabytes of that.
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_DATA, (memory, resource.getrlimit(resource.RLIMIT_DATA)[1]))
    with socket.socket(fileno=descriptor) as connection, connection.makefile("rwb") as stream:
        while header := stream.read(HEADER.size):
            work, args, seconds = pickle.loads(stream.read(HEADER.unpack(header)[0]))
            data = stream.read(HEADER.unpack(stream.read(HEADER.size))[0])
            _limit_cpu(seconds)
            answer = pickle.dumps(_done(work, data, args), pickle.HIGHEST_PROTOCOL)
            del work, args, data
            stream.write(HEADER.pack(len(answer)))
            stream.write(answer)
            stream.flush()


def _done(work: Callable[..., Any], data: bytes, args: tuple[object, ...]) -> tuple[str, Any]:
    try:
        return "ok", work(data, *args)
    except RondoError as error:
        return "error", error
    except MemoryError:
        return "error", OutOfMemory("it needs too much memory.")
    except Exception as error:
        import traceback

        return "bug", "".join(traceback.format_exception(error))


def _limit_cpu(seconds: float) -> None:
    """A child whose server was killed must not work on for ever."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    most = int(used.ru_utime + used.ru_stime + 2 * seconds) + 2
    resource.setrlimit(resource.RLIMIT_CPU, (most, resource.getrlimit(resource.RLIMIT_CPU)[1]))
