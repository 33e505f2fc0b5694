"""Ranks that fail or take too long, in tests of how they are launched: they import nothing heavy."""

import os
import socket
import time


def fails(rank: int) -> None:
    """The others are connected to it until its end, which is theirs too."""
    address = (os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
    if int(os.environ["RANK"]) == rank:
        with socket.create_server(address) as server:
            server.accept()[0].detach()
        raise RuntimeError("this rank is out of luck")
    while True:
        try:
            connection = socket.create_connection(address)
        except ConnectionRefusedError:
            time.sleep(0.01)
        else:
            break
    connection.recv(1)
    raise RuntimeError("Connection closed by peer")


def sleeps() -> None:
    time.sleep(600)
