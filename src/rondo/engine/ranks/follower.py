"""A rank other than 0: does what rank 0 did, in the same order, and so computes the same steps."""

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
    """The ends of a socket and of a pipe, the process that has the others, and the file where the ranks meet."""
    # Signals are for rank 0, which may still have requests to finish.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    # What there is to say rank 0 says.
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
    # Not through the interpreter's end, which would wait for threads of a broken group.
    os._exit(code)


def _end_with_parent(lifeline: int, parent: int, meeting: Path) -> None:
    """Even in the middle of a step, where the other ranks would be waited for. A fork of the parent may hold the pipe
    open longer than the parent lives."""
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
    # All are there: from here on none may be much later than another.
    channel.receive()
    core = FollowerRank(model, group, setup, channel.send)
    while True:
        core.follow(channel.receive())
