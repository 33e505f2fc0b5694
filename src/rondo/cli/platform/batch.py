"""`rondo batch create|list|show|cancel|results`: batches of requests on a gateway."""

from __future__ import annotations

import argparse
import codecs
import json
import sys
import time
from collections.abc import Generator
from contextlib import closing
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rondo.base.errors import ConfigError, NotFound, RondoError, Unavailable
from rondo.base.ids import new_id
from rondo.base.storage.files import write_json
from rondo.base.storage.hashing import sha256_file, sha256_json
from rondo.base.storage.home import home
from rondo.cli.options.arguments import VerbParser
from rondo.cli.options.verbs import run_verb
from rondo.cli.platform.remote import add_address, gateway_client
from rondo.cli.view.table import aligned

if TYPE_CHECKING:
    from rondo.client.http import Client

USAGE = """usage: rondo batch VERB [options]

  create   upload a file of requests and begin: rondo batch create requests.jsonl
  list     list batches, the newest first
  show     a batch with its counts and errors
  cancel   stop a batch; results until then stay
  results  print the results, or write them to a file

Each line of the file is a request of OpenAI's batch API:
{"custom_id": "1", "method": "POST", "url": "/v1/chat/completions", "body": {...}}

  rondo batch VERB --help   what a verb takes"""
ENDED = ("completed", "failed", "expired", "cancelled")
POLL_SECONDS = 1.0
REFUSALS = (400, 404, 409, 413, 422)
"""Statuses of a batch that fails again when the command is repeated."""


def run(argv: list[str]) -> int:
    return run_verb("rondo batch", VERBS, USAGE, argv)


def _create(argv: list[str]) -> int:
    parser = VerbParser("rondo batch create", "Upload a file of requests and begin a batch.")
    parser.add_argument("file", metavar="FILE", help="local file, or the id of an uploaded one")
    parser.add_argument("--window", default="24h", metavar="TIME", help="time until it expires (24h)")
    parser.add_argument(
        "--wait",
        action="store_true",
        help="wait until it has ended; the same command after an interruption waits for the same batch",
    )
    add_address(parser)
    given = parser.parse_args(argv)
    with gateway_client(given.url, given.key) as client:
        source = _Source(client, given.file)
        endpoint = source.endpoint()
        if not given.wait:
            made = source.begin(endpoint, given.window, new_id("key"), source.uploaded())
            print(f"batch {made['id']} is {made['status']}")
            print(f"  its state: rondo batch show {made['id']}\n  results: rondo batch results {made['id']}")
            return 0
        return _wait(source, endpoint, given.window)


def _wait(source: _Source, endpoint: str, window: str) -> int:
    """Begins a batch, or continues with the one of an interrupted command, and waits for its end."""
    from rondo.client.platform.queue import patiently

    state = source.state(endpoint, window)
    if not state.is_file():
        write_json(state, {"key": new_id("key"), "file": source.uploaded()})
    known = json.loads(state.read_text())
    try:
        made = source.begin(endpoint, window, known["key"], known["file"])
    except RondoError as error:
        if error.status in REFUSALS:
            state.unlink(missing_ok=True)
        raise
    print(f"batch {made['id']} is {made['status']}", flush=True)
    try:
        while (made := patiently(partial(source.client.batch, made["id"])))["status"] not in ENDED:
            time.sleep(POLL_SECONDS)
    except (KeyboardInterrupt, Unavailable):
        print(
            f"\nThe batch continues. Run the same command again to wait for it, or cancel it: rondo batch cancel "
            f"{made['id']}",
            file=sys.stderr,
        )
        raise
    state.unlink(missing_ok=True)
    print(f"batch {made['id']} is {made['status']}: {_counts(made)}")
    for each in (made["errors"] or {}).get("data", ()):
        print(f"line {each['line']}: {each['message']}" if each["line"] else each["message"])
    return 0 if made["status"] == "completed" else 1


class _Source:
    """A local file of requests, or one of the gateway."""

    def __init__(self, client: Client, name: str) -> None:
        self.client, self.name, self.path = client, name, Path(name)
        self.local = self.path.is_file()
        if not self.local and not name.startswith("file-"):
            raise NotFound(f"There is no file {name}.", param="file")

    def endpoint(self) -> str:
        """The route of all requests, read from the first one."""
        with closing(self._lines()) as lines:
            first = next((line for line in lines if line.strip()), b"")
        try:
            url = json.loads(first)["url"]
        except (ValueError, KeyError, TypeError):
            url = None
        if not isinstance(url, str):
            raise ConfigError(f"The first line of {self.name} is no request with a url.", param="file")
        return url

    def _lines(self) -> Generator[bytes, None, None]:
        if self.local:
            with self.path.open("rb") as file:
                yield from file
            return
        from rondo.client.answers import LineSplitter

        splitter = LineSplitter()
        with closing(self.client.file_pieces(self.name)) as pieces:
            for data in pieces:
                yield from splitter.push(data)
        yield from splitter.push(b"\n")

    def uploaded(self) -> str:
        """Id of the file on the gateway."""
        if not self.local:
            return self.name
        return str(self.client.upload(self.path, "batch")["id"])

    def state(self, endpoint: str, window: str) -> Path:
        """The file with the idempotency key of a command that waits."""
        content = sha256_file(self.path) if self.local else self.name
        command = sha256_json([self.client.base_url, endpoint, window, content])
        return home() / "batches" / f"{command}.json"

    def begin(self, endpoint: str, window: str, key: str, file: str) -> dict[str, Any]:
        from rondo.client.platform.queue import patiently

        return patiently(lambda: self.client.create_batch(file, endpoint, window, idempotency_key=key))


def _list(argv: list[str]) -> int:
    parser = VerbParser("rondo batch list", "List batches, the newest first.")
    parser.add_argument("--limit", type=int, default=20, metavar="N", help="number of batches (20)")
    parser.add_argument("--json", action="store_true", help="print one JSON array")
    add_address(parser)
    given = parser.parse_args(argv)
    with gateway_client(given.url, given.key) as client:
        found = client.batch_page(limit=given.limit)["data"]
    if given.json:
        print(json.dumps(found))
        return 0
    rows = [("BATCH", "ENDPOINT", "STATE", "REQUESTS", "CREATED")]
    rows += [
        (
            each["id"],
            each["endpoint"],
            each["status"],
            _counts(each),
            time.strftime("%Y-%m-%d %H:%M", time.localtime(each["created_at"])),
        )
        for each in found
    ]
    print(
        "\n".join(aligned(rows))
        if found
        else "There are no batches yet: `rondo batch create FILE` begins one."
    )
    return 0


def _show(argv: list[str]) -> int:
    given = _parsed("rondo batch show", "A batch with its counts and errors.", argv)
    with gateway_client(given.url, given.key) as client:
        print(json.dumps(client.batch(given.id), indent=2, ensure_ascii=False))
    return 0


def _cancel(argv: list[str]) -> int:
    given = _parsed("rondo batch cancel", "Stop a batch; results until then stay.", argv)
    with gateway_client(given.url, given.key) as client:
        print(f"batch {given.id} is {client.cancel_batch(given.id)['status']}")
    return 0


def _parsed(prog: str, description: str, argv: list[str]) -> argparse.Namespace:
    parser = VerbParser(prog, description)
    parser.add_argument("id", metavar="ID", help="id of a batch")
    add_address(parser)
    return parser.parse_args(argv)


def _results(argv: list[str]) -> int:
    parser = VerbParser("rondo batch results", "Results and errors of a batch that has ended.")
    parser.add_argument("id", metavar="ID", help="id of a batch")
    parser.add_argument("--out", metavar="FILE", help="local file (the terminal)")
    add_address(parser)
    given = parser.parse_args(argv)
    from rondo.client.platform.jobs import write_pieces

    with gateway_client(given.url, given.key) as client:
        batch = client.batch(given.id)
        if batch["status"] not in ENDED:
            raise ConfigError(f"Batch {given.id} is {batch['status']}: wait until it has ended.", param="id")
        ids = [batch[name] for name in ("output_file_id", "error_file_id") if batch[name]]
        pieces = chain.from_iterable(map(client.file_pieces, ids))
        if given.out:
            write_pieces(given.out, pieces)
            print(f"{given.out}  {_counts(batch)}")
        else:
            sys.stdout.writelines(codecs.iterdecode(pieces, "utf-8", errors="replace"))
    return 0


def _counts(batch: dict[str, Any]) -> str:
    counts = batch["request_counts"]
    failed = f", {counts['failed']:,} failed" if counts["failed"] else ""
    return f"{counts['completed']:,} of {counts['total']:,}{failed}"


VERBS = {"create": _create, "list": _list, "show": _show, "cancel": _cancel, "results": _results}
