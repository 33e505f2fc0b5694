"""The socket that the server listens on."""

import asyncio
import socket

import pytest

from rondo.base.errors import ConfigError
from rondo.web.run import bind


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_what_is_written_is_sent_at_once(host: str) -> None:
    """A body must not wait for the client to acknowledge the head."""
    try:
        listener = bind(host, 0)
    except ConfigError:
        if host == "::1":
            pytest.skip("this machine has no IPv6")
        raise
    seen: list[int] = []

    async def main() -> None:
        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            accepted = writer.get_extra_info("socket")
            seen.append(accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))
            writer.close()

        server = await asyncio.start_server(serve, sock=listener)
        reader, writer = await asyncio.open_connection(host, listener.getsockname()[1])
        await reader.read()
        writer.close()
        server.close()

    asyncio.run(main())
    assert seen == [1]
