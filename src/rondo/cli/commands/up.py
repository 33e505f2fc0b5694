"""`rondo up`: the demo model, made first if there is none, behind the OpenAI API."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from rondo.cli.commands.serve import serve
from rondo.cli.options.arguments import VerbParser
from rondo.cli.options.short import read_short

if TYPE_CHECKING:
    from collections.abc import Callable

    from rondo.cli.options.tree import RondoConfig
    from rondo.demo.pipeline import Event


FLAGS = ("--host", "--port", "--api-key", "--allowed-hosts", "--allow-public-without-key")


def run(argv: list[str]) -> int:
    parser = VerbParser(
        "rondo up", "Serve the demo model; make it first if there is none (a few minutes, once)."
    )
    command = read_short(parser, FLAGS, argv)
    if command is None:
        return 0
    parser.parse_args(command.rest)
    tree = command.config.tree
    _check_port(tree)
    return serve(_demo_model(), tree, banner=True)


def _demo_model() -> Path:
    """The view opens with the first event: where the model is there already, there is nothing to see."""
    from rondo.cli.view.demo_view import demo_view
    from rondo.demo.pipeline import ensure_demo_model

    show: Callable[[Event], None] | None = None
    with ExitStack() as stack:

        def on_event(event: Event) -> None:
            nonlocal show
            if show is None:
                show = stack.enter_context(demo_view())
            show(event)

        return ensure_demo_model(on_event)


def _check_port(tree: RondoConfig) -> None:
    """Minutes of making a model should not end in a port that is taken."""
    from rondo.web.exposure import listen

    listen(tree.server).close()
