"""What every benchmark here shares: the machine, medians, the table, and the JSON line scripts read."""

import argparse
import json
import os
import platform
import socket
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rondo.base.threads import yield_soon

yield_soon()  # ours and, by the environment, the peers: on a busy machine it matters more than either

THREADS = int(os.environ.get("RONDO_BENCH_THREADS", os.cpu_count() or 1))


@dataclass
class Report:
    """One benchmark's figures, in the shape `--json` prints."""

    name: str
    ours: dict[str, float] = field(default_factory=dict)
    peers: dict[str, dict[str, float | str]] = field(default_factory=dict)
    limit: dict[str, float | str] = field(default_factory=dict)
    ratios: dict[str, float] = field(default_factory=dict)
    columns: dict[str, dict[str, float]] = field(default_factory=dict)
    """Further ones of the table, each with its ratio by figure."""
    notes: list[str] = field(default_factory=list)

    def show(self, as_json: bool) -> None:
        titles = ["figure", "rondo", *self.peers, *(["limit"] if self.limit else []), *self.columns]
        rows = [titles]
        for figure, value in self.ours.items():
            row = [figure, number(value)]
            row += [number(peer.get(figure, peer.get("absent", "-"))) for peer in self.peers.values()]
            row += [number(self.limit.get(figure, "-"))] if self.limit else []
            row += [number(column.get(figure, "-")) for column in self.columns.values()]
            rows.append(row)
        widths = [max(len(row[i]) for row in rows) for i in range(len(titles))]
        for row in rows:
            print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
        for figure, ratio in self.ratios.items():
            print(f"{figure}: {ratio:.2f}x")
        for note in self.notes:
            print(f"note: {note}")
        if as_json:
            print(
                json.dumps(
                    {
                        "name": self.name,
                        "machine": machine(),
                        "ours": self.ours,
                        "peers": self.peers,
                        "limit": self.limit,
                        "ratios": self.ratios | self._of_columns(),
                    }
                )
            )

    def _of_columns(self) -> dict[str, float]:
        return {
            f"{figure}, {title}": ratio
            for title, column in self.columns.items()
            for figure, ratio in column.items()
        }


def number(value: float | str) -> str:
    return value if isinstance(value, str) else f"{value:,.3g}" if abs(value) < 1000 else f"{value:,.0f}"


def arguments(description: str, argv: list[str] | None = None, **peers: str) -> argparse.Namespace:
    """The options all benchmarks take; `peers` are the names `--peers` may list. `argv` is what is left for them, where
    a benchmark has options of its own."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--json", action="store_true", help="print one JSON object last")
    parser.add_argument("--quick", action="store_true", help="small sizes and few runs: does it work at all?")
    parser.add_argument(
        "--peers", default=",".join(peers), help=f"comma-separated, of: {', '.join(peers) or 'none'}"
    )
    options = parser.parse_args(argv)
    options.peers = [name for name in options.peers.split(",") if name]
    unknown = [name for name in options.peers if name not in peers]
    if unknown:
        parser.error(f"unknown peer {unknown[0]!r}; known: {', '.join(peers)}")
    return options


def machine() -> str:
    model = platform.processor() or platform.machine()
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        model = next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
        flags = next(line for line in lines if line.startswith("flags"))
        model += " " + "+".join(f for f in ("avx512f", "avx512_bf16", "amx_bf16") if f in flags)
    except (OSError, StopIteration):
        pass
    return f"{model.strip()}, {os.cpu_count()} cores, {platform.system()}, Python {platform.python_version()}"


def seconds(action: Callable[[], Any]) -> float:
    start = time.perf_counter()
    action()
    return time.perf_counter() - start


def alternate(runs: int, **actions: Callable[[], float]) -> dict[str, list[float]]:
    """Run each action once a round, so that drift of the machine falls on all of them alike."""
    results: dict[str, list[float]] = {name: [] for name in actions}
    for _ in range(runs):
        for name, action in actions.items():
            results[name].append(action())
    return results


def median(values: list[float]) -> float:
    return statistics.median(values)


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


def cpu_seconds(pid: int) -> float:
    """CPU time of a process and of the children it waited for."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()
    return sum(int(field) for field in fields[11:15]) / os.sysconf("SC_CLK_TCK")


def say(text: str) -> None:
    """Progress, on stderr, so that stdout stays the table."""
    print(text, file=sys.stderr, flush=True)
