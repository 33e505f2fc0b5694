"""`rondo queue list|show|cancel|retry|clear`: queued requests of a gateway."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rondo.base.units import human_count, human_seconds
from rondo.cli.options.arguments import VerbParser
from rondo.cli.options.verbs import run_verb
from rondo.cli.platform.remote import add_address, gateway_client
from rondo.cli.view.table import aligned

if TYPE_CHECKING:
    from rondo.client.http import Client

USAGE = """usage: rondo queue VERB [options]

  list     counts by model, rates, submissions and dead letters
  show     a submission or a request: rondo queue show ID
  cancel   cancel what has not ended: rondo queue cancel ID
  retry    return dead letters to the queue: rondo queue retry ID
  clear    cancel all waiting requests

`rondo generate` and POST /v1/generate fill the queue; `rondo serve`, `rondo up` and `rondo worker` execute it.

  rondo queue VERB --help   what a verb takes"""
DEAD = 10
LOCAL = "local"
"""Owner of requests without a key, on a gateway that needs none."""
SHOWN = 100


def run(argv: list[str]) -> int:
    return run_verb("rondo queue", VERBS, USAGE, argv)


def _list(argv: list[str]) -> int:
    parser = VerbParser("rondo queue list", "Counts by model, rates, submissions and dead letters.")
    parser.add_argument("--limit", type=int, default=20, metavar="N", help="submissions to list (20)")
    parser.add_argument("--json", action="store_true", help="print the summary as JSON")
    add_address(parser)
    given = parser.parse_args(argv)
    with gateway_client(given.url, given.key) as client:
        summary = client.queue_summary()
        groups = client.groups(given.limit)["data"]
        dead = client.dead_letters(DEAD)["data"] if summary["dead"] else []
        names = {} if given.json else _names(client, groups)
    if given.json:
        print(json.dumps({"summary": summary, "groups": groups, "dead": dead}))
        return 0
    states = ("queued", "leased", "resting", "done", "dead", "cancelled")
    rows: list[tuple[str, ...]] = [("MODEL", *(state.upper() for state in states))]
    rows += [
        (name, *(human_count(counts.get(state, 0)) for state in states))
        for name, counts in summary["models"].items()
    ]
    rates = summary["rates"]
    tokens = rates["input_tokens_per_second"] + rates["output_tokens_per_second"]
    print("\n".join(aligned(rows)))
    print(
        f"\n{rates['requests_per_second']:.1f} requests/s, {human_count(int(tokens))} tokens/s, "
        f"{summary['workers']} workers\n"
    )
    print(
        "\n".join(
            aligned(
                [("SUBMISSION", "OWNER", "DONE", "AGE", "STATE"), *(_row(each, names) for each in groups)]
            )
        )
    )
    if dead:
        print("\ndead letters (`rondo queue show ID`, `rondo queue retry ID`):")
        for each in dead:
            print(f"  {each['id']}  {_short(each['reason'])}")
    return 0


def _show(argv: list[str]) -> int:
    parser = VerbParser("rondo queue show", "A submission with its failures, or one request.")
    parser.add_argument("id", metavar="ID", help="id of a submission or of a request")
    add_address(parser)
    given = parser.parse_args(argv)
    with gateway_client(given.url, given.key) as client:
        if "_" in given.id:
            print(json.dumps(client.queued_request(given.id), indent=2, ensure_ascii=False))
            return 0
        group = client.group(given.id)
        page = client.result_page(given.id, limit=SHOWN)["data"]
        names = _names(client, [group])
    print("\n".join(aligned([("SUBMISSION", "OWNER", "DONE", "AGE", "STATE"), _row(group, names)])))
    for each in page:
        error = "" if each["error"] is None else f"  {_short(json.dumps(each['error'], ensure_ascii=False))}"
        print(f"  {each['id']}  {each['state']}{error}")
    if len(page) == SHOWN:
        print(f"  the first {SHOWN} of {group['total']:,}")
    return 0


def _cancel(argv: list[str]) -> int:
    parser = VerbParser("rondo queue cancel", "Cancel the requests of a submission that have not ended.")
    parser.add_argument("id", metavar="ID", help="id of a submission")
    add_address(parser)
    given = parser.parse_args(argv)
    with gateway_client(given.url, given.key) as client:
        before = client.group(given.id)["unfinished"]
        client.cancel_group(given.id)
    print(f"{before:,} requests are cancelled.")
    return 0


def _retry(argv: list[str]) -> int:
    parser = VerbParser("rondo queue retry", "Return dead letters to the queue.")
    parser.add_argument("id", metavar="ID", help="id of a submission, or of one dead letter")
    add_address(parser)
    given = parser.parse_args(argv)
    with gateway_client(given.url, given.key) as client:
        retry = client.retry_request if "_" in given.id else client.retry_group
        number = retry(given.id)["changed"]
    print(f"{number:,} requests are in the queue again.")
    return 0


def _clear(argv: list[str]) -> int:
    parser = VerbParser(
        "rondo queue clear", "Cancel all waiting requests: those of the key, or with an admin's key all."
    )
    add_address(parser)
    given = parser.parse_args(argv)
    with gateway_client(given.url, given.key) as client:
        number = client.clear_queue()["changed"]
    print(f"{number:,} requests are cancelled.")
    return 0


def _names(client: Client, groups: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Names of the keys that own the groups, by id. Only an admin's key lists the other keys."""
    if all(group["owner"] == LOCAL for group in groups):
        return {}
    own = client.own_key()
    keys = client.api_keys()["data"] if own["role"] == "admin" else [own]
    return {key["id"]: key["name"] for key in keys}


def _row(group: Mapping[str, Any], names: Mapping[str, str]) -> tuple[str, ...]:
    done = group["total"] - group["unfinished"]
    state = "ended" if group["ended"] is not None else "running" if group["sealed"] else "open"
    age = human_seconds(max(0.0, time.time() - group["created"]))
    owner = names.get(group["owner"], group["owner"])
    return group["id"], owner, f"{done:,} of {group['total']:,}", age, state


def _short(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= 120 else f"{text[:119]}…"


VERBS = {"list": _list, "show": _show, "cancel": _cancel, "retry": _retry, "clear": _clear}
