"""Chat requests through the gateway, next to LiteLLM's proxy and two Rust routers, in front of an upstream that answers
after 20 ms.

At 1, 4, 16 and 64 connections, each with one request at a time: requests per second, the time added to a request
without a gateway (median and p99), errors, CPU time per request, and memory at the end. Upstream and load generator are
processes of their own whose cost the column "direct" shows. All answers are checked: each contains the number of its
request. All gateways run during the whole benchmark and are measured in turn. Ours and LiteLLM check an API key; the
Rust routers have none. `--seconds`, `--rounds`: length and number of the runs.
"""

import argparse
import os
from contextlib import ExitStack
from typing import Any

import peers
from common import Report, arguments, median, say
from gateways import SIDES, Server, load, serve, stub

CONCURRENCY = (1, 4, 16, 64)
LATENCY = 0.02
FEWEST = 20


def requests_of(concurrency: int, rate: float, seconds: float) -> int:
    return max(FEWEST, concurrency, int(rate * seconds))


def run(server: Server | None, url: str, concurrency: int, count: int) -> dict[str, Any]:
    options = (f"--concurrency={concurrency}", f"--requests={count}")
    if server is None:
        return load(url, "", *options)
    before = server.cpu()
    figures = load(server.url, server.key, *options)
    figures["gateway_cpu"] = (server.cpu() - before) / max(1, figures["count"])
    return figures


class Runs:
    """Figures of all runs, by side and concurrency."""

    def __init__(self) -> None:
        self.runs: dict[tuple[str, int], list[dict[str, Any]]] = {}

    def add(self, side: str, concurrency: int, figures: dict[str, Any]) -> None:
        self.runs.setdefault((side, concurrency), []).append(figures)
        if figures["errors"]:
            say(f"{side}, {concurrency}: {figures['errors']} errors, first: {figures['first_error']}")

    def of(self, side: str, server: Server | None) -> dict[str, float | str]:
        found: dict[str, float | str] = {}
        for concurrency in CONCURRENCY:
            runs, bare = self.runs[side, concurrency], self.runs["direct", concurrency]
            found[f"{concurrency}: requests/s"] = median([one["rate"] for one in runs])
            for name in ("p50", "p99"):
                pairs = zip(runs, bare, strict=True)
                added = [(one[name] - other[name] * (side != "direct")) * 1e3 for one, other in pairs]
                found[f"{concurrency}: added {name}, ms"] = median(added)
            if server is not None:
                found[f"{concurrency}: CPU per request, ms"] = median(
                    [one["gateway_cpu"] * 1e3 for one in runs]
                )
            found[f"{concurrency}: errors"] = sum(one["errors"] for one in runs)
        if server is not None:
            found["memory, MiB"] = server.mebibytes()
        return found


def measure(servers: dict[str, Server], upstream: str, seconds: float, rounds: int) -> Runs:
    """Each side in turn, at each concurrency; the slower a side, the fewer requests it is sent."""
    runs = Runs()
    rates: dict[tuple[str, int], float] = {}
    for number in range(rounds + 1):
        for concurrency in CONCURRENCY:
            for side in ("direct", *servers):
                server = servers.get(side)
                rate = rates.get((side, concurrency), concurrency / LATENCY / 8)
                length = seconds if number else seconds / 4
                figures = run(server, upstream, concurrency, requests_of(concurrency, rate, length))
                rates[side, concurrency] = figures["rate"] or rate
                if number:  # the first round warms up and finds the rates
                    runs.add(side, concurrency, figures)
        say(f"round {number} of {rounds}, load average {os.getloadavg()[0]:.1f}")
    return runs


def main() -> None:
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--rounds", type=int, default=5)
    own, rest = parser.parse_known_args()
    options = arguments(__doc__.splitlines()[0], rest, **{name: "" for name in SIDES if name != "rondo"})
    seconds, rounds = (0.5, 1) if options.quick else (own.seconds, own.rounds)
    report = Report("gateway")
    with stub(f"--latency={LATENCY}") as upstream, ExitStack() as stack:
        servers = {"rondo": stack.enter_context(serve("rondo", upstream))}
        for name in options.peers:
            try:
                servers[name] = stack.enter_context(serve(name, upstream))
            except peers.Absent as reason:
                report.peers[name] = {"absent": "absent"}
                report.notes.append(str(reason))
        runs = measure(servers, upstream, seconds, rounds)
        report.ours = {key: float(value) for key, value in runs.of("rondo", servers["rondo"]).items()}
        for name in servers:
            if name != "rondo":
                report.peers[name] = runs.of(name, servers[name])
        report.limit = runs.of("direct", None) | {
            "how": "without a gateway; its own latency, not an added one"
        }
        generator = median([one["cpu"] / max(1, one["count"]) * 1e3 for one in runs.runs["direct", 64]])
        report.notes.append(f"the load generator takes {generator:.3f} ms of CPU time per request")
    for name, figures in report.peers.items():
        if "absent" not in figures:
            report.ratios |= ratios(name, report.ours, figures)
    report.notes.append(f"load average {os.getloadavg()[0]:.1f}")
    report.show(options.json)


def ratios(name: str, ours: dict[str, float], theirs: dict[str, Any]) -> dict[str, float]:
    return {
        f"requests/s at 64, over {name}": ours["64: requests/s"] / theirs["64: requests/s"],
        f"added p99 at 16, {name} over ours": theirs["16: added p99, ms"] / ours["16: added p99, ms"],
    }


if __name__ == "__main__":
    main()
