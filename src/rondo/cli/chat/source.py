"""Selection of the model: a URL, a model of this machine, or by default a running server or the newest model."""

from __future__ import annotations

import asyncio
import os
import socket
import tempfile
import threading
from pathlib import Path
from typing import TYPE_CHECKING

from rondo.base.errors import NotFound
from rondo.base.telemetry.activity import activity
from rondo.cli.chat.speaker import Speaker
from rondo.cli.view.fetch import fetch_model

if TYPE_CHECKING:
    from rondo.cli.options.tree import RondoConfig

PROBE_SECONDS = 1.0
STOP_SECONDS = 10.0


def is_url(text: str) -> bool:
    return text.startswith(("http://", "https://"))


def open_speaker(
    model: str | None, tree: RondoConfig, key: str | None = None, served: str | None = None
) -> Speaker:
    """`served` is the name of the model behind a URL, by default the server's first one."""
    reason = ""
    if model is None:
        from rondo.client.http import DEFAULT_URL, ENGINE_URL

        model = running_server()
        if model is None:
            places = f"{DEFAULT_URL} or {ENGINE_URL}"
            model, reason = newest_model(), f" (the newest model; no server at {places})"
    if is_url(model):
        return _remote(model, key, served)
    speaker = load_speaker(model, tree)
    speaker.where += reason
    return speaker


def running_server() -> str | None:
    """`RONDO_BASE_URL`, or the usual address of a gateway or an engine server if it responds there."""
    import httpx

    from rondo.client.http import DEFAULT_URL, ENGINE_URL

    if given := os.environ.get("RONDO_BASE_URL"):
        return given
    for url in (DEFAULT_URL, ENGINE_URL):
        try:
            found = httpx.get(f"{url}/v1/models", timeout=PROBE_SECONDS)
        except httpx.HTTPError:
            continue
        if found.status_code in (200, 401):
            return url
    return None


def newest_model() -> str:
    from rondo.client.http import DEFAULT_URL, ENGINE_URL
    from rondo.models.store import list_models, written_at

    models = list_models()
    if not models:
        raise NotFound(
            f"No server responds at {DEFAULT_URL} or {ENGINE_URL}, and this machine has no model: "
            "`rondo demo` trains one, `rondo pull ORG/NAME` downloads one of the Hugging Face Hub.",
            param="model",
        )
    return max(models, key=lambda model: written_at(model[1]))[0]


def _remote(url: str, key: str | None, served: str | None) -> Speaker:
    from rondo.client.http import Client

    client = Client(url, key)
    try:
        names = client.models()
    except BaseException:
        client.close()
        raise
    name = served or (names[0] if names else "")
    if not name or (served and names and served not in names):
        client.close()
        raise NotFound(
            f"{url} does not serve {served!r}: it has {', '.join(names) or 'no model'}. Choose with --model.",
            param="model",
        )
    return Speaker(name, client, name, f"at {client.base_url}")


def load_speaker(model: str, tree: RondoConfig) -> Speaker:
    """A model of this machine, with engine and application in this process, on a private Unix socket."""
    fetch_model(model)
    with activity("importing torch"):
        import httpx

        from rondo.client.http import Client
        from rondo.server.load import load_app
        from rondo.web.run import make_server

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
