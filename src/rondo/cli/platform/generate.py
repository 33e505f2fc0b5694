"""`rondo generate FILE.jsonl`: responses to all prompts of a file, through the durable queue of a gateway."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from rondo.base.errors import ConfigError, NotFound, RondoError
from rondo.cli.options.arguments import VerbParser
from rondo.cli.platform.remote import add_address, gateway_client
from rondo.cli.view.progress import count_progress

if TYPE_CHECKING:
    from rondo.cli.platform.generation import Generation
    from rondo.client.http import Client

INTERRUPTED = 130


def run(argv: list[str]) -> int:
    parser = VerbParser(
        "rondo generate",
        "Answer all prompts of a file through the durable queue of a gateway. The same command resumes after Ctrl-C, "
        "kill -9 or a restart of any process.",
    )
    parser.add_argument(
        "file",
        metavar="FILE",
        help='JSONL: texts, {"prompt"}, {"messages"}, {"path", "body"}, or lines of an OpenAI batch',
    )
    parser.add_argument("--model", metavar="MODEL", help="model of lines without one (the gateway's first)")
    parser.add_argument(
        "--out", metavar="FILE", help="results, one line for each prompt (NAME.results.jsonl)"
    )
    parser.add_argument("--max-tokens", type=int, metavar="N", help="longest response (16)")
    parser.add_argument("--temperature", type=float, metavar="T", help="temperature (0)")
    parser.add_argument(
        "--options",
        type=_object,
        default={},
        metavar="JSON",
        help='further fields: \'{"top_p": 0.9, "n": 2}\'',
    )
    parser.add_argument(
        "--retries",
        type=int,
        default=1,
        metavar="N",
        help="times that failed prompts are attempted again (1)",
    )
    parser.add_argument(
        "--priority", type=int, default=0, metavar="N", help="lower numbers are served first (0)"
    )
    parser.add_argument("--full", action="store_true", help="add the whole response body to each result")
    add_address(parser)
    given = parser.parse_args(argv)
    source = Path(given.file)
    if not source.is_file():
        raise NotFound(f"There is no file {source}.", param="file")
    out = Path(given.out) if given.out else source.with_name(f"{source.stem}.results.jsonl")
    if out.exists() and out.samefile(source):
        raise ConfigError("--out must be another file than the prompts.", param="--out")
    from rondo.cli.platform.generation import Generation

    with gateway_client(given.url, given.key) as client:
        model = given.model or _first_model(client)
        work = Generation(client, source, out, model, _options(given), given.priority, given.full)
        return _run(work, given.retries)


def _first_model(client: Client) -> str | None:
    from rondo.client.platform.queue import patiently

    cards = patiently(client.model_cards)["data"]
    return str(cards[0]["id"]) if cards else None


def _run(work: Generation, retries: int) -> int:
    try:
        with count_progress(work.source.name) as report:
            done, failed = work.run(retries, report)
    except KeyboardInterrupt:
        print(f"\n{_continues(work)}", file=sys.stderr)
        return INTERRUPTED
    except RondoError:
        if work.resumable:
            print(_continues(work), file=sys.stderr)
        raise
    print(f"{done - failed:,} responses in {work.out}" + (f", {failed:,} prompts failed" if failed else ""))
    return 1 if failed else 0


def _continues(work: Generation) -> str:
    return (
        f"The queue goes on with {work.group or 'the prompts that it has'}. Run the same command again for the "
        f"results, or cancel it: rondo queue cancel {work.group or 'ID'}"
    )


def _options(given: argparse.Namespace) -> dict[str, object]:
    further: dict[str, object] = given.options
    own = {"max_tokens": given.max_tokens, "temperature": given.temperature}
    return {name: value for name, value in own.items() if value is not None} | further


def _object(text: str) -> dict[str, object]:
    value: object
    try:
        value = json.loads(text)
    except ValueError:
        value = None
    if not isinstance(value, dict):
        raise argparse.ArgumentTypeError(f"{text!r} is not a JSON object")
    return dict(value)
