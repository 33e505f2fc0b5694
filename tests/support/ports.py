"""Ports for servers that tests start as processes."""

import contextlib
import socket

_held: list[socket.socket] = []


def free_port() -> int:
    """Ours until we end, so that no other test is given it meanwhile; the server may listen there all the same."""
    holder = socket.socket()
    holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    holder.bind(("127.0.0.1", 0))
    _held.append(holder)
    return int(holder.getsockname()[1])


def listening(port: int) -> bool:
    """Whether a connection is accepted, which is far cheaper to ask than an answer."""
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 5):
        return True
    return False
