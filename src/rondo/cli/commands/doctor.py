"""`rondo doctor`: performance of the kernels on this machine, compared with its limits."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from rondo.cli.options.arguments import VerbParser

if TYPE_CHECKING:
    from rondo.ops.measure.limits import HardwareLimits
    from rondo.ops.measure.probe import Case

ROWS = (1, 16, 256)
SECONDS = 0.1
"""For each operation; making its tensors takes about as long."""


def run(argv: list[str]) -> int:
    parser = VerbParser(
        "rondo doctor",
        "Say what computes on this machine: which CPU instructions, with how many threads, and what is missing. "
        "--kernels measures each operation (half a minute).",
    )
    parser.add_argument(
        "--kernels", action="store_true", help="which version of each operation runs, why, how fast"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    given = parser.parse_args(argv)
    found = _machine()
    if given.kernels:
        found |= _kernels()
    print(json.dumps(found, indent=2) if given.json else "\n".join(_shown(found)))
    return 0


def _machine() -> dict[str, Any]:
    import torch

    from rondo.graders.sandbox.isolation import isolation
    from rondo.ops.native.build.ahead import compile_all, lost, runs
    from rondo.ops.native.build.level import available, level
    from rondo.ops.native.gemm.linear import takes_bf16

    compile_all()
    return {
        "level": level(),
        "available": available(),
        "threads": torch.get_num_threads(),
        "runs": {"fp32": runs("fp32"), "bf16": runs("bf16") if takes_bf16() else "plain torch"},
        "missing": lost(),
        "sandbox": asdict(isolation()),
    }


def _kernels() -> dict[str, Any]:
    from rondo.ops.measure.limits import measure_limits
    from rondo.ops.measure.probe import cases, products
    from rondo.ops.native.build.tune import tune
    from rondo.ops.triton.report import on_cuda

    limits = measure_limits(1.5)
    known = tune(products())
    return {
        "tuned": {name: found.model_dump() for name, found in known.items()},
        "limits": {"read_bytes_per_second": limits.read, "flops": limits.flops},
        "kernels": [_row(case, limits) for case in cases(ROWS)],
        "cuda": asdict(on_cuda()),
    }


def _row(case: Case, limits: HardwareLimits) -> dict[str, Any]:
    """Rates are of the limiting resource: bytes read, or operations."""
    version, why = case.version()
    seconds, limit = case.seconds(SECONDS), case.limit(limits)
    reads = limit == case.read / limits.read
    return {
        "operation": case.operation,
        "type": case.dtype,
        "sizes": case.sizes,
        "version": version,
        "why": why,
        "rate": (case.read if reads else case.flops) / seconds,
        "unit": "bytes/s" if reads else "flop/s",
        "share": limit / seconds,
    }


def _shown(found: dict[str, Any]) -> list[str]:
    both = ", ".join(f"{dtype} {version}" for dtype, version in found["runs"].items())
    threads = found["threads"]
    lines = [f"{both}, {threads} thread{'s' * (threads > 1)}"]
    lines.append(f"this CPU has: {', '.join(found['available'])} (RONDO_CPU takes another)")
    if found["missing"]:
        lines.append(f"missing: {found['missing']}")
    sandbox = found["sandbox"]
    lines.append(f"sandbox for programs: {'' if sandbox['available'] else 'none; '}{sandbox['about']}")
    if "kernels" not in found:
        return lines
    limits = found["limits"]
    rates = ", ".join(f"{rate / 1e9:.3g} Gflop/s in {kind}" for kind, rate in limits["flops"].items())
    lines.append(f"limits: {limits['read_bytes_per_second'] / 1e9:.1f} GB/s read; {rates}")
    rows = [("operation", "type", "sizes", "version", "rate", "of the limit", "why")]
    for kernel in found["kernels"]:
        unit = "GB/s" if kernel["unit"] == "bytes/s" else "Gflop/s"
        rate = f"{kernel['rate'] / 1e9:.1f} {unit}"
        names = (kernel["operation"], kernel["type"], kernel["sizes"], kernel["version"])
        rows.append((*names, rate, f"{kernel['share']:.0%}", kernel["why"]))
    return lines + _table(rows) + _tuned(found["tuned"]) + _shown_cuda(found["cuda"])


def _tuned(tuned: dict[str, dict[str, Any]]) -> list[str]:
    """Tuned partition of each matrix product on this machine, and its speedup."""
    rows = [("tuned product", "rows a thread to share", "times", "columns at a time", "times")]
    for name, found in sorted(tuned.items()):
        few, many = (f"{found[f'times_with_{rows}_rows']:.2f}" for rows in ("few", "many"))
        rows.append((name, str(found["few"]), few, str(found["columns"]), many))
    return _table(rows) if tuned else []


def _table(rows: Sequence[tuple[str, ...]]) -> list[str]:
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]


def _shown_cuda(cuda: dict[str, Any]) -> list[str]:
    device = f"CUDA: {cuda['device'] or 'no device here'}"
    if cuda["why"]:
        return [f"{device}; plain torch for every operation: {cuda['why']}"]
    there = "runs" if cuda["device"] else "would run"
    return [
        f"{device}; {cuda['version']} {there} {', '.join(cuda['kernels'])}; torch {', '.join(cuda['plain'])}"
    ]
