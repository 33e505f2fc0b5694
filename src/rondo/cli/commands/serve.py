"""`rondo serve MODEL`: one engine behind the OpenAI API."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from rondo.base.telemetry.activity import activity
from rondo.base.telemetry.log import get_logger
from rondo.cli.options.arguments import VerbParser
from rondo.cli.options.flags import FLAGS
from rondo.cli.options.short import read_short
from rondo.cli.options.tree import RondoConfig
from rondo.cli.view.fetch import fetch_adapters, fetch_model, fetch_named_models

if TYPE_CHECKING:
    import socket

log = get_logger("rondo.cli.commands.serve")


def run(argv: list[str]) -> int:
    parser = VerbParser("rondo serve", "Serve a model over the OpenAI API.")
    parser.add_argument(
        "model",
        metavar="MODEL",
        help="a model's name, a folder, a job's name or hash, or ORG/NAME[@REVISION][:QUANTIZATION] of the Hugging "
        "Face Hub",
    )
    parser.epilog = "A flag of `vllm serve` without an effect here is refused with its replacement."
    command = read_short(parser, tuple(FLAGS), argv)
    if command is None:
        return 0
    model, tree = parser.parse_args(command.rest).model, command.config.tree
    fetch_model(model)
    fetch_named_models({"engine.draft_model": tree.engine.draft_model})
    fetch_adapters({f"server.adapters.{name}": place for name, place in tree.server.adapters.items()})
    return serve(model, tree)


def serve(model: str | Path, tree: RondoConfig, banner: bool = False) -> int:
    """Blocks until a signal ends the server."""
    from rondo.web.exposure import listen
    from rondo.web.run import url_of

    listener = listen(tree.server)
    try:
        return _serve(model, tree, listener, url_of(listener), banner)
    finally:
        listener.close()


@contextmanager
def without_collector() -> Iterator[None]:
    """Imports and loading make a great many objects that all stay: looking for garbage among them costs a tenth of
    the start, and later a pause at each full collection."""
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


def _serve(model: str | Path, tree: RondoConfig, listener: socket.socket, url: str, banner: bool) -> int:
    with without_collector():
        with activity("importing torch"):
            from rondo.client.engine import fault_of
            from rondo.models.store import resolve
            from rondo.server.load import load_app
            from rondo.server.queued import EngineWithWorker
            from rondo.web.exposure import warn_of_no_key
            from rondo.web.run import make_server, run_server

        app, engine, name = load_app(model, tree.engine, tree.server)

    drained = EngineWithWorker(engine, app, tree.worker, tree.server, url, resolve(model))

    def on_start() -> None:
        drained.start()
        log.info("serving", extra={"model": name, "url": url})
        warn_of_no_key(tree.server, listener)
        if banner:
            _print_banner(name, url)

    try:
        run_server(make_server(app, tree.server, drained), listener, on_start)
        if fault := fault_of(engine):
            raise fault
    finally:
        engine.stop()
    return 0


def _print_banner(name: str, url: str) -> None:
    body = f'{{"model": "{name}", "messages": [{{"role": "user", "content": "reverse PLANET"}}]}}'
    print(f"\n  {url}/v1   model: {name}\n", flush=True)
    print(f"  curl {url}/v1/chat/completions -H 'Content-Type: application/json' -d '{body}'\n", flush=True)
