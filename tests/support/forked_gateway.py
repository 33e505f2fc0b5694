"""`rondo gateway` and `rondo worker` in forks of a process that has imported them: work for `support.nursery`."""

import os

from rondo.cli.main import main
from rondo.cli.service import gateway, worker  # noqa: F401 with all that they need
from rondo.gateway import serve  # noqa: F401
from rondo.worker import start  # noqa: F401

MODULE = __name__


def rondo(log: str, *arguments: str) -> None:
    redirect(log)
    os._exit(main(arguments))


def redirect(log: str) -> None:
    """What the process says, to the end of a file."""
    with open(log, "ab") as file:
        for stream in (1, 2):
            os.dup2(file.fileno(), stream)
