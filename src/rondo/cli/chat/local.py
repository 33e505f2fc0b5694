"""A model of this machine as a `Speaker`: engine and application in this process, on a private Unix socket."""

from __future__ import annotations

import asyncio
import socket
import tempfile
import threading
from pathlib import Path
from typing import TYPE_CHECKING

from rondo.base.telemetry.activity import activity
from rondo.cli.chat.speaker import Speaker

if TYPE_CHECKING:
    from rondo.cli.options.tree import RondoConfig

STOP_SECONDS = 10.0


def load_speaker(model: str, tree: RondoConfig) -> Speaker:
    """Loads the model; its weights stay in this process until `close`."""
    with activity("importing torch"):
        import httpx

        from rondo.client.http import Client
        from rondo.server.load import load_app
        from rondo.server.run import make_server

    config = tree.server.model_copy(
        update={"access_log": False, "api_key": None, "admin_key": None, "otlp_traces_endpoint": None}
    )
    app, engine, name = load_app(model, tree.engine, config)
    folder = tempfile.TemporaryDirectory(prefix="rondo-chat-")
    path = Path(folder.name) / "socket"
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(str(path))
    listener.listen()
    server = make_server(app, config, engine)
    thread = threading.Thread(
        target=lambda: asyncio.run(server.serve(sockets=[listener])), name="rondo-chat", daemon=True
    )
    thread.start()

    def close() -> None:
        server.should_exit = True
        thread.join(STOP_SECONDS)
        engine.stop()
        folder.cleanup()

    client = Client("http://localhost", transport=httpx.HTTPTransport(uds=str(path)))
    return Speaker(model, client, name, "in this process", close)
