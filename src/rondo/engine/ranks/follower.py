"""Process of a rank other than 0: repeats rank 0's commands in order, and so computes the same steps."""

from __future__ import annotations

import contextlib
import logging
import os
import select
import shutil
import signal
import socket
import threading
import traceback
from pathlib import Path
from typing import TYPE_CHECKING

from rondo.engine.ranks.channel import Channel

if TYPE_CHECKING:
    from rondo.engine.ranks.ranks import RankSetup

LOOK_SECONDS = 1.0


def main(channel: str, lifeline: str, parent: str, meeting: str) -> None:
    """Runs the process. Arguments: file descriptors of a socket and of a pipe, the id of the parent process, which has
    their other ends, and the rendezvous file of the ranks."""
    # Signals are handled by rank 0, which may still have requests to finish.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    # Rank 0 logs for all ranks.
    logging.getLogger("rondo").addHandler(logging.NullHandler())
    logging.getLogger("rondo").propagate = False
    threading.Thread(
        target=_end_with_parent, args=(int(lifeline), int(parent), Path(meeting)), daemon=True
    ).start()
    commands = Channel(socket.socket(fileno=int(channel)))
    code = 0
    try:
        _serve(commands, commands.receive())
    except EOFError:
        pass
    except BaseException as error:
        code = 1
        _report(commands, error)
    # Without the interpreter's shutdown, which would wait for threads of a broken group.
    os._exit(code)


def _end_with_parent(lifeline: int, parent: int, meeting: Path) -> None:
    """Ends the process with its parent, even in the middle of a step that waits for other ranks. The parent id is
    checked too, because a fork of the parent may hold the pipe open after the parent's death."""
    while not select.select([lifeline], [], [], LOOK_SECONDS)[0] and os.getppid() == parent:
        pass
    shutil.rmtree(meeting.parent, ignore_errors=True)
    os._exit(0)


def _report(channel: Channel, error: BaseException) -> None:
    from rondo.engine.ranks.ranks import Report

    said = str(error).strip().partition("\n")[0] or type(error).__name__
    with contextlib.suppress(OSError):
        channel.send(Report(said, traceback.format_exc()), 5.0)


def _serve(channel: Channel, setup: RankSetup) -> None:
    from rondo.engine.ranks.following import FollowerRank
    from rondo.engine.ranks.rank_core import load_shard
    from rondo.engine.ranks.ranks import Report

    channel.send(Report())
    model, group = load_shard(setup)
    channel.send(Report())
    # All ranks are ready: from here on none may lag far behind another.
    channel.receive()
    core = FollowerRank(model, group, setup, channel.send)
    while True:
        core.follow(channel.receive())
