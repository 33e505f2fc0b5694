"""The client of `forks.py`, which puts the line of its interpreter before it. It imports as little as it can: it starts
in place of each process."""

import _socket
import marshal
import os
import signal
from array import array
from sys import argv

FOLDER = os.path.dirname(__file__)
FORWARDED = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2}


def main() -> int:
    if not argv[1:] or (argv[1].startswith("-") and argv[1] not in ("-c", "-m")):
        real = os.readlink(os.path.join(FOLDER, "real"))
        os.execv(real, [real, *argv[1:]])
    signal.pthread_sigmask(signal.SIG_BLOCK, FORWARDED)
    ignored = [int(each) for each in FORWARDED if signal.getsignal(each) == signal.SIG_IGN]
    files = open_files()
    question = marshal.dumps((argv, dict(os.environ), os.getcwd(), files, ignored))
    connection = _socket.socket(_socket.AF_UNIX)
    connection.connect(os.path.join(FOLDER, "socket"))
    head = len(question).to_bytes(8, "big")
    connection.sendmsg([head], [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, array("i", files))])
    connection.sendall(question)
    fork = number(connection)
    for file in files:
        os.close(file)  # whoever reads them waits for the fork alone
    for each in FORWARDED.difference(ignored):
        signal.signal(each, lambda sent, _: os.kill(fork, sent))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, FORWARDED)
    code = number(connection)
    if code < 0:
        end_by(-code)
    return code


def open_files() -> list[int]:
    """What a new process has: all that is inherited."""
    names = sorted(map(int, os.listdir("/proc/self/fd")))
    return [name for name in names if os.path.exists(f"/proc/self/fd/{name}") and os.get_inheritable(name)]


def number(connection: _socket.socket) -> int:
    line = b""
    while not line.endswith(b"\n"):
        part = connection.recv(1)
        if not part:
            end_by(signal.SIGKILL)  # the parent of the forks has ended
        line += part
    return int(line)


def end_by(sent: int) -> None:
    if sent != signal.SIGKILL:
        signal.signal(sent, signal.SIG_DFL)
    os.kill(os.getpid(), sent)


os._exit(main())
