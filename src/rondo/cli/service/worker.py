"""`rondo worker`: executes queued requests of a gateway with any OpenAI-compatible engine."""

from __future__ import annotations

from rondo.cli.options.arguments import VerbParser
from rondo.cli.options.scopes import WORKER
from rondo.cli.options.short import read_settings


def run(argv: list[str]) -> int:
    parser = VerbParser(
        "rondo worker", "Execute queued requests of a gateway with any OpenAI-compatible engine.", WORKER
    )
    parser.epilog = (
        "`rondo serve` and `rondo up` have workers of their own. The key needs the role worker: `rondo keys create "
        "NAME --role worker`."
    )
    command = read_settings(parser, argv)
    if command is None:
        return 0
    parser.parse_args(command.rest)
    from rondo.worker.start import run_worker

    run_worker(command.config.tree.worker)
    return 0
