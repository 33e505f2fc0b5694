"""A server for benchmarks, in a process of its own: the model's folder, then `--pace SECONDS` for a step that takes at
least so long; or `--bare` for one that has no model and answers at once, in the same HTTP server. Prints its URL once
it can be asked, and ends when its standard input does."""

import argparse
import os
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TextIO

import torch
from starlette.types import ASGIApp, Receive, Scope, Send

from rondo.base.telemetry.log import setup
from rondo.base.threads import yield_soon
from rondo.cli.commands.serve import without_collector
from rondo.client.engine import ServedEngine
from rondo.engine.config import EngineConfig
from rondo.engine.schedule.step import StepOutput
from rondo.server.config import ServerConfig
from rondo.server.load import load_app
from rondo.web.run import bind, make_server, run_server, url_of

ANSWER = b'{"choices":[{"token_ids":[]}]}'.ljust(400)


def paced(step: Callable[[], StepOutput], seconds: float) -> Callable[[], StepOutput]:
    due = 0.0

    def wait_and_step() -> StepOutput:
        nonlocal due
        time.sleep(max(0.0, due - time.monotonic()))
        due = max(due, time.monotonic() - seconds) + seconds
        return step()

    return wait_and_step


async def bare(scope: Scope, receive: Receive, send: Send) -> None:
    """As little as a request can cost: its body is read, and as many bytes come back as an answer has."""
    while (await receive())["more_body"]:
        pass
    headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(ANSWER))]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": ANSWER})


def main(nowhere: TextIO) -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder")
    parser.add_argument("--bare", action="store_true")
    parser.add_argument("--pace", type=float, default=0.0)
    parser.add_argument("--max-num-seqs", type=int, default=64)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--max-body-bytes", type=int)
    given = parser.parse_args()
    yield_soon()
    torch.set_num_threads(given.threads)
    # As `rondo serve` logs, one line a request; nobody reads them.
    setup("human", "info", nowhere)
    listener = bind("127.0.0.1", 0)
    app: ASGIApp = bare
    engine: ServedEngine | None = None
    if not given.bare:
        settings = ServerConfig(served_model_name="model", max_body_bytes=given.max_body_bytes)
        config = EngineConfig(max_num_seqs=given.max_num_seqs, threads=given.threads)
        with without_collector():
            app, engine, _ = load_app(given.folder, config, settings)
        if given.pace:
            engine.core.step = paced(engine.core.step, given.pace)  # type: ignore[attr-defined]
    server = make_server(app, ServerConfig(), engine)

    def end_with_parent() -> None:
        sys.stdin.read()
        server.should_exit = True

    threading.Thread(target=end_with_parent, daemon=True).start()
    try:
        run_server(server, listener, lambda: print(url_of(listener), flush=True))
    finally:
        if engine is not None:
            engine.stop()


if __name__ == "__main__":
    with Path(os.devnull).open("w") as nowhere:
        main(nowhere)
