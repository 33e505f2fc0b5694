"""`rondo up`: the demo model, made first if there is none, behind the OpenAI API."""

from __future__ import annotations

from rondo.cli.arguments import Parser
from rondo.cli.serve import SHORT, override, serve
from rondo.cli.tree import read_command_line


def run(argv: list[str]) -> int:
    parser = Parser("rondo up", "Serve the demo model; make it first if there is none (a few minutes, once).")
    for flag in ("--host", "--port"):
        path, kind, text = SHORT[flag]
        parser.add_argument(flag, type=kind, dest=path, metavar=flag[2:].upper(), help=text)
    if any(flag in argv for flag in ("-h", "--help")):
        parser.print_help()
        return 0
    command = read_command_line(argv)
    given = {
        path: value for path, value in vars(parser.parse_args(command.rest)).items() if value is not None
    }
    tree = override(command.config.tree, given)
    _check_port(tree.server.host, tree.server.port)

    from rondo.rl.demo import ensure_demo_model

    return serve(ensure_demo_model(), tree, banner=True)


def _check_port(host: str, port: int) -> None:
    """Minutes of making a model should not end in a port that is taken."""
    from rondo.server.run import bind

    bind(host, port).close()
