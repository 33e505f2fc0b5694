"""`rondo logs PART [-f]`: the log of a part that `rondo up` runs."""

from __future__ import annotations

import sys
import time

from rondo.cli.options.arguments import VerbParser

POLL_SECONDS = 0.2
LAST_BYTES = 256 << 10


def run(argv: list[str]) -> int:
    parser = VerbParser("rondo logs", "Show or follow the log of a part that `rondo up` runs.")
    parser.add_argument("part", nargs="?", metavar="PART", help="gateway, engine-1, ...; without it, a list")
    parser.add_argument("-f", "--follow", action="store_true", help="print further lines as they are written")
    parser.add_argument("-n", "--lines", type=int, default=50, metavar="N", help="lines to begin with (50)")
    given = parser.parse_args(argv)
    from rondo.supervisor.logs import log_file, parts_with_logs, read_log

    if given.part is None:
        for part in parts_with_logs():
            print(f"{part}  {log_file(part)}")
        return 0
    piece = read_log(given.part, None, LAST_BYTES)
    lines = piece.data.splitlines(keepends=True)
    _write(b"".join(lines[-given.lines :] if given.lines > 0 else ()))
    while given.follow:
        time.sleep(POLL_SECONDS)
        piece = read_log(given.part, piece.end, LAST_BYTES, piece.file)
        _write(piece.data)
    return 0


def _write(data: bytes) -> None:
    sys.stdout.write(data.decode(errors="replace"))
    sys.stdout.flush()
