"""Streams through the gateway: the cost of a chunk, 2,000 streams at 10 chunks per second for a minute, and memory over
100,000 short requests.

The upstream stamps each chunk with the time at which it was sent, and the load generator reads the same clock: the
delay of a chunk with the gateway less the delay without it is what the gateway adds. Every chunk must belong to its
stream and be the next one. For memory, requests without latency run at 64 connections; memory is read after each tenth
of them. `--streams`, `--seconds`, `--requests`: sizes.
"""

import argparse
import os
from typing import Any

from common import Report, alternate, arguments, median, say
from gateways import Server, load, serve, stub

PACE = 0.1


def run(server: Server | None, url: str, streams: int, chunks: int) -> dict[str, Any]:
    options = ("--streams", f"--concurrency={streams}", f"--chunks={chunks}")
    if server is None:
        return load(url, "", *options)
    before = server.cpu()
    figures = load(server.url, server.key, *options)
    figures["gateway_cpu"] = (server.cpu() - before) / max(1, figures["count"])
    if figures["errors"]:
        say(f"{figures['errors']} errors, first: {figures['first_error']}")
    return figures


def cost_of_a_chunk(server: Server, upstream: str, rounds: int) -> dict[str, float]:
    """A few streams at a time, so that the delay is not a queue."""
    runs: dict[str, list[dict[str, Any]]] = {"direct": [], "ours": []}

    def one(side: str) -> float:
        runs[side].append(run(server if side == "ours" else None, upstream, 8, 100))
        return 0.0

    alternate(rounds, direct=lambda: one("direct"), ours=lambda: one("ours"))
    middle = {side: median([each["p50"] for each in found]) for side, found in runs.items()}
    return {
        "8 streams: added delay of a chunk, median, ms": (middle["ours"] - middle["direct"]) * 1e3,
        "8 streams: CPU per chunk, ms": median([each["gateway_cpu"] for each in runs["ours"]]) * 1e3,
    }


def many(server: Server, upstream: str, streams: int, chunks: int) -> dict[str, float]:
    figures = run(server, upstream, streams, chunks)
    return {
        f"{streams} streams: lost, cut or mixed up": figures["errors"],
        f"{streams} streams: chunks per second and stream": figures["rate"] / streams,
        f"{streams} streams: delay of a chunk, median, ms": figures["p50"] * 1e3,
        f"{streams} streams: delay of a chunk, p99, ms": figures["p99"] * 1e3,
        f"{streams} streams: CPU per chunk, ms": figures.get("gateway_cpu", 0.0) * 1e3,
        f"{streams} streams: memory, MiB": server.mebibytes(),
    }


def memory(server: Server, requests: int) -> dict[str, float]:
    readings = []
    errors = 0
    for _ in range(10):
        errors += load(server.url, server.key, "--concurrency=64", f"--requests={requests // 10}")["errors"]
        readings.append(server.mebibytes())
        say(f"memory {readings[-1]:.1f} MiB, load average {os.getloadavg()[0]:.1f}")
    return {
        f"{requests} requests: errors": errors,
        f"{requests} requests: memory after a tenth, MiB": readings[0],
        f"{requests} requests: growth from then on, MiB": readings[-1] - readings[0],
    }


def main() -> None:
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--streams", type=int, default=2000)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--requests", type=int, default=100_000)
    own, rest = parser.parse_known_args()
    options = arguments(__doc__.splitlines()[0], rest)
    sizes = (1, 50, 3, 1000) if options.quick else (5, own.streams, own.seconds, own.requests)
    rounds, streams, seconds, requests = sizes
    report = Report("gateway_streams")
    with stub(f"--pace={PACE}") as upstream, serve("rondo", upstream) as server:
        report.ours = cost_of_a_chunk(server, upstream, rounds)
        report.ours |= many(server, upstream, streams, int(seconds / PACE))
        alone = run(None, upstream, streams, int(seconds / PACE))
    report.limit = {
        "8 streams: added delay of a chunk, median, ms": 0.2,
        f"{streams} streams: lost, cut or mixed up": alone["errors"],
        f"{streams} streams: chunks per second and stream": alone["rate"] / streams,
        f"{streams} streams: delay of a chunk, median, ms": alone["p50"] * 1e3,
        f"{streams} streams: delay of a chunk, p99, ms": alone["p99"] * 1e3,
        "how": "the target of the first row; without a gateway in the others",
    }
    with stub("--latency=0") as upstream, serve("rondo", upstream) as server:
        report.ours |= memory(server, requests)
    report.notes.append(f"load average {os.getloadavg()[0]:.1f}")
    report.show(options.json)


if __name__ == "__main__":
    main()
