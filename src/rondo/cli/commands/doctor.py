"""`rondo doctor`: devices, installation and kernels of this machine, and the kernels' distance from its limits."""

from __future__ import annotations

import json
import textwrap
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from rondo.base.units import human_bytes
from rondo.cli.options.arguments import VerbParser
from rondo.cli.options.help import columns
from rondo.cli.view.table import aligned

if TYPE_CHECKING:
    from rondo.ops.measure.limits import HardwareLimits
    from rondo.ops.measure.probe import Case

ROWS = (1, 16, 256)
SECONDS = 0.1
"""For each operation; making its tensors takes about as long."""


def run(argv: list[str]) -> int:
    parser = VerbParser(
        "rondo doctor",
        "Check this machine and this installation: devices, memory, disk, compiler, kernels, extras, and the packages "
        "to install. The exit code is 1 if the installation is broken.",
    )
    parser.add_argument(
        "--kernels", action="store_true", help="measure each operation and its version (half a minute)"
    )
    parser.add_argument("--hub", action="store_true", help="test whether the Hugging Face hub is reachable")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    given = parser.parse_args(argv)

    from rondo.cli.subcommands.doctor_machine import machine, reach_hub

    found = machine()
    if not found["problems"]:
        found |= _computes()
        if given.kernels:
            found |= _kernels()
    if given.hub:
        found["hub"] = reach_hub()
    print(json.dumps(found, indent=2) if given.json else "\n".join(_shown(found)))
    return 1 if found["problems"] else 0


def _computes() -> dict[str, Any]:
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
        "kernels": [_measure(case, limits) for case in cases(ROWS)],
        "cuda": asdict(on_cuda()),
    }


def _measure(case: Case, limits: HardwareLimits) -> dict[str, Any]:
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
    lines = [
        *_machine_lines(found),
        *(_kernel_lines(found) if "runs" in found else []),
        *_extra_lines(found["extras"]),
    ]
    if "hub" in found:
        hub = found["hub"]
        lines += _row("hub", f"{hub['address']} is {'' if hub['reachable'] else 'not '}reachable")
    for kind in ("problems", "advice"):
        for text in found[kind]:
            lines += _row({"problems": "broken", "advice": "advice"}[kind], text)
    return lines + (_measured(found) if "kernels" in found else [])


def _machine_lines(found: dict[str, Any]) -> list[str]:
    python, torch, home, memory = (found[name] for name in ("python", "torch", "home", "memory"))
    cuda = f"CUDA {torch['cuda']}" if torch.get("cuda") else "CPU only"
    lines = _row("python", f"{python['version']} ({python['executable']})")
    if torch["version"]:
        lines += _row("torch", f"{torch['version']}, {cuda}, {torch['threads']} threads")
    for device in found["devices"]:
        size = f"{device['cores']} cores" if "cores" in device else human_bytes(device["memory_bytes"])
        lines += _row(device["device"], f"{device['name']}, {size}")
    lines += _row(
        "memory", f"{human_bytes(memory['total_bytes'])}, {human_bytes(memory['available_bytes'])} available"
    )
    lines += _row(
        "home",
        f"{home['folder']}: {home['models']} models, {home['jobs']} jobs, {human_bytes(home['free_bytes'])} free",
    )
    return lines + _row("compiler", found["compiler"] or "none")


def _kernel_lines(found: dict[str, Any]) -> list[str]:
    both = ", ".join(f"{dtype} {version}" for dtype, version in found["runs"].items())
    sandbox = found["sandbox"]
    return [
        *_row("kernels", f"{both}; this CPU has {', '.join(found['available'])} (RONDO_CPU selects)"),
        *(_row("missing", found["missing"]) if found["missing"] and found["compiler"] else []),
        *_row("sandbox", f"{'' if sandbox['available'] else 'none; '}{sandbox['about']}"),
    ]


def _extra_lines(extras: dict[str, str | None]) -> list[str]:
    from rondo.cli.subcommands.doctor_machine import EXTRAS

    here = [f"{name} ({version})" for name, version in extras.items() if version]
    lines = _row("extras", ", ".join(here) or "none")
    missing = [name for name, version in extras.items() if not version]
    width = max(map(len, missing), default=0)
    for name in missing:
        lines += _row("", f"pip install 'rondo-lab[{name}]'{' ' * (width - len(name))}  {EXTRAS[name][1]}")
    return lines


def _row(name: str, text: str) -> list[str]:
    first, *rest = textwrap.wrap(text, columns() - 11, break_on_hyphens=False) or [""]
    return [f"{name:<10} {first}".rstrip(), *(f"{'':<10} {line}" for line in rest)]


def _measured(found: dict[str, Any]) -> list[str]:
    limits = found["limits"]
    rates = ", ".join(f"{rate / 1e9:.3g} Gflop/s in {kind}" for kind, rate in limits["flops"].items())
    lines = [f"limits: {limits['read_bytes_per_second'] / 1e9:.1f} GB/s read; {rates}"]
    rows = [("operation", "type", "sizes", "version", "rate", "of the limit", "why")]
    for kernel in found["kernels"]:
        unit = "GB/s" if kernel["unit"] == "bytes/s" else "Gflop/s"
        rate = f"{kernel['rate'] / 1e9:.1f} {unit}"
        names = (kernel["operation"], kernel["type"], kernel["sizes"], kernel["version"])
        rows.append((*names, rate, f"{kernel['share']:.0%}", kernel["why"]))
    return lines + aligned(rows) + _tuned(found["tuned"]) + _shown_cuda(found["cuda"])


def _tuned(tuned: dict[str, dict[str, Any]]) -> list[str]:
    """Tuned partition of each matrix product on this machine, and its speedup."""
    rows = [("tuned product", "rows a thread to share", "times", "columns at a time", "times")]
    for name, found in sorted(tuned.items()):
        few, many = (f"{found[f'times_with_{rows}_rows']:.2f}" for rows in ("few", "many"))
        rows.append((name, str(found["few"]), few, str(found["columns"]), many))
    return aligned(rows) if tuned else []


def _shown_cuda(cuda: dict[str, Any]) -> list[str]:
    device = f"CUDA: {cuda['device'] or 'no device here'}"
    if cuda["why"]:
        return [f"{device}; plain torch for every operation: {cuda['why']}"]
    there = "runs" if cuda["device"] else "would run"
    return [
        f"{device}; {cuda['version']} {there} {', '.join(cuda['kernels'])}; torch {', '.join(cuda['plain'])}"
    ]
