"""`rondo down`: end everything that `rondo up` started."""

from __future__ import annotations

from rondo.cli.options.arguments import VerbParser


def run(argv: list[str]) -> int:
    parser = VerbParser("rondo down", "End everything that `rondo up` started: requests under way end first.")
    parser.add_argument("--seconds", type=float, default=90.0, metavar="S", help="longest time to wait (90)")
    given = parser.parse_args(argv)
    from rondo.supervisor.state import stop_running

    pid = stop_running(given.seconds)
    print(f"The supervisor (process {pid}) and its parts have ended.")
    return 0
