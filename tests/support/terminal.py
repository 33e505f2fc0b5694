"""An interactive program on a terminal of its own, to type into and read from."""

from __future__ import annotations

import os
import pty
import re
import select
import signal
import time
from collections.abc import Mapping, Sequence
from types import TracebackType

from support.waiting import scaled

ESCAPE = re.compile(r"\x1b(\[[0-9;?]*[A-Za-z]|[=>]|\][^\x07]*\x07|[()][AB0])|[\x00-\x08\x0e-\x1f]")


class Terminal:
    def __init__(self, command: Sequence[str], env: Mapping[str, str], columns: int = 200) -> None:
        self.pid, self.end = pty.fork()
        if self.pid == 0:
            os.environ.update(env, TERM="xterm", COLUMNS=str(columns), LINES="100")
            os.execvp(command[0], list(command))

    def __enter__(self) -> Terminal:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)
        os.close(self.end)

    def type(self, text: str) -> None:
        os.write(self.end, text.encode())

    def until(self, wanted: str, seconds: float = 30.0) -> str:
        """Everything shown until `wanted` appears, without control sequences."""
        shown, deadline = "", time.monotonic() + scaled(seconds)
        while wanted not in plain(shown):
            left = deadline - time.monotonic()
            assert left > 0, f"{wanted!r} was not shown: {plain(shown)!r}"
            if select.select([self.end], [], [], left)[0]:
                shown += os.read(self.end, 65536).decode(errors="replace")
        return plain(shown)


def plain(text: str) -> str:
    return ESCAPE.sub("", text)
