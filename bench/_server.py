"""A server for benchmarks, in a process of its own: the model's folder, then `--pace SECONDS` for a step that takes at
least so long. Prints its URL once it can be asked, and ends when its standard input does."""

import argparse
import sys
import threading
import time
from collections.abc import Callable

import torch

from rondo.base.log import setup
from rondo.base.threads import yield_soon
from rondo.engine.config import EngineConfig
from rondo.engine.step import Step
from rondo.server.config import ServerConfig
from rondo.server.load import load_app
from rondo.server.run import bind, make_server, run_server, url_of


def paced(step: Callable[[], Step], seconds: float) -> Callable[[], Step]:
    due = 0.0

    def wait_and_step() -> Step:
        nonlocal due
        time.sleep(max(0.0, due - time.monotonic()))
        due = max(due, time.monotonic() - seconds) + seconds
        return step()

    return wait_and_step


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder")
    parser.add_argument("--pace", type=float, default=0.0)
    parser.add_argument("--max-num-seqs", type=int, default=64)
    parser.add_argument("--threads", type=int, default=1)
    given = parser.parse_args()
    yield_soon()
    torch.set_num_threads(given.threads)
    setup("json", "error")
    config = EngineConfig(max_num_seqs=given.max_num_seqs, threads=given.threads)
    listener = bind("127.0.0.1", 0)
    app, engine, _ = load_app(given.folder, config, ServerConfig(served_model_name="model"))
    if given.pace:
        engine.core.step = paced(engine.core.step, given.pace)  # type: ignore[method-assign]
    server = make_server(app, ServerConfig(), engine)

    def end_with_parent() -> None:
        sys.stdin.read()
        server.should_exit = True

    threading.Thread(target=end_with_parent, daemon=True).start()
    try:
        run_server(server, listener, lambda: print(url_of(listener), flush=True))
    finally:
        engine.stop()


if __name__ == "__main__":
    main()
