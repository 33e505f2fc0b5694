"""`rondo serve MODEL`: one engine behind the OpenAI API."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from rondo.base.config import Section
from rondo.base.errors import ConfigError
from rondo.base.log import get_logger
from rondo.cli.arguments import Parser
from rondo.cli.tree import RondoConfig, read_command_line

if TYPE_CHECKING:
    import socket

log = get_logger("rondo.cli.serve")

SHORT: dict[str, tuple[str, type, str]] = {
    "--host": ("server.host", str, "address to listen on (127.0.0.1)"),
    "--port": ("server.port", int, "port to listen on (8000)"),
    "--api-key": ("server.api_key", str, "what clients must send as Bearer token"),
    "--served-model-name": ("server.served_model_name", str, "the name clients ask for"),
    "--max-model-len": ("engine.max_model_len", int, "longest prompt plus answer, in tokens"),
    "--max-num-seqs": ("engine.max_num_seqs", int, "most requests computed together"),
    "--max-num-batched-tokens": ("engine.max_step_tokens", int, "most tokens computed in one step"),
    "--dtype": ("engine.dtype", str, "auto, float32, bfloat16 or float16"),
    "--device": ("engine.device", str, "auto, cpu, cuda, ..."),
    "--threads": ("engine.threads", int, "CPU threads of one step"),
    "--seed": ("engine.seed", int, "where requests without a seed get theirs from"),
}
"""vLLM's names for the settings people set most, and what they are called in the tree."""


def run(argv: list[str]) -> int:
    parser = Parser("rondo serve", "Serve a model over the OpenAI API.")
    parser.add_argument("model", help="a model's name, or a folder in Hugging Face layout")
    for flag, (path, kind, text) in SHORT.items():
        parser.add_argument(flag, type=kind, dest=path, metavar=path.rpartition(".")[2].upper(), help=text)
    parser.epilog = "Every other setting is a flag too: --engine.block_size=32; `rondo config` lists them."
    if any(flag in argv for flag in ("-h", "--help")):
        parser.print_help()
        return 0
    command = read_command_line(argv)
    given = vars(parser.parse_args(command.rest))
    model = given.pop("model")
    return serve(model, override(command.config.tree, {k: v for k, v in given.items() if v is not None}))


def override(tree: RondoConfig, values: dict[str, object]) -> RondoConfig:
    """The tree with some leaves replaced, checked again."""
    parts: dict[str, Section] = {}
    for room in ("engine", "server"):
        section: Section = getattr(tree, room)
        changed = {path.partition(".")[2]: v for path, v in values.items() if path.startswith(f"{room}.")}
        parts[room] = checked(type(section), section.model_dump() | changed)
    return tree.model_copy(update=parts)


def checked(kind: type[Section], values: dict[str, object]) -> Section:
    from pydantic import ValidationError

    try:
        return kind.model_validate(values)
    except ValidationError as error:
        first = error.errors()[0]
        name = str(first["loc"][0])
        flag = "--" + {"max_step_tokens": "max-num-batched-tokens"}.get(name, name.replace("_", "-"))
        raise ConfigError(f"{flag}: {first['msg']}; got {first['input']!r}.", param=name) from None


def serve(model: str | Path, tree: RondoConfig, banner: bool = False) -> int:
    """Blocks until a signal ends the server."""
    from rondo.server.run import bind, url_of

    listener = bind(tree.server.host, tree.server.port)
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
        from rondo.server.load import load_app
        from rondo.server.run import make_server, run_server

        app, engine, name = load_app(model, tree.engine, tree.server)

    def on_start() -> None:
        log.info("serving", extra={"model": name, "url": url})
        if banner:
            _print_banner(name, url)

    try:
        run_server(make_server(app, tree.server), listener, on_start)
    finally:
        engine.stop()
    return 0


def _print_banner(name: str, url: str) -> None:
    body = f'{{"model": "{name}", "messages": [{{"role": "user", "content": "Hello"}}]}}'
    print(f"\n  {url}/v1   model: {name}\n", flush=True)
    print(f"  curl {url}/v1/chat/completions -H 'Content-Type: application/json' -d '{body}'\n", flush=True)
