"""GPU faults of this machine: uncorrected ECC errors, failed row remapping, and Xid errors of the driver that no
program causes. `python -m rondo.jobs.health FOLDER` writes them to a file of this machine in the folder.
"""

from __future__ import annotations

import contextlib
import os
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from rondo.base.process import exit_reason, last_line
from rondo.base.storage.files import read_json, write_json

FIELDS = "index,pci.bus_id,ecc.errors.uncorrected.volatile.total,remapped_rows.failure"
XIDS = {
    48: "double-bit ECC error",
    64: "row remapping failed",
    74: "NVLink error",
    79: "the GPU has fallen off the bus",
    92: "high rate of single-bit ECC errors",
    94: "contained ECC error",
    95: "uncontained ECC error",
    119: "GSP timeout",
    120: "GSP error",
    140: "unrecovered ECC error",
}
"""Xid errors of the hardware. Others, such as 13 and 31, are mostly errors of programs."""
XID = re.compile(r"NVRM: Xid \(PCI:(?P<bus>[0-9a-f:.]+)\): (?P<xid>\d+)", re.IGNORECASE)
SECONDS = 20.0
NODE_NAME = "NODE_NAME"
"""Variable with the name of a pod's node."""
FAULTY = 75
"""Exit code of a machine with a faulty GPU."""


@dataclass(frozen=True)
class GpuFault:
    gpu: int | None
    """None: every GPU of the machine."""
    reason: str

    def __str__(self) -> str:
        return f"{'all GPUs' if self.gpu is None else f'GPU {self.gpu}'}: {self.reason}"


def faults() -> list[GpuFault]:
    """Faults of all GPUs since the driver was loaded; empty without nvidia-smi."""
    try:
        command = ["nvidia-smi", f"--query-gpu={FIELDS}", "--format=csv,noheader,nounits"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS)
    except FileNotFoundError:
        return []
    except subprocess.TimeoutExpired:
        return [GpuFault(None, f"nvidia-smi does not respond within {SECONDS:g} s")]
    except OSError as error:
        return [GpuFault(None, f"nvidia-smi cannot start: {error.strerror}")]
    found = [*of_query(done.stdout), *of_kernel(done.stdout, kernel_messages())]
    if done.returncode:
        text = last_line(done.stderr or done.stdout, 200) or exit_reason(done.returncode)
        found.append(GpuFault(None, f"nvidia-smi failed: {text}"))
    return list(dict.fromkeys(found))


def of_query(text: str) -> Iterator[GpuFault]:
    """Faults in the lines of nvidia-smi. A GPU without ECC has [N/A]."""
    for number, _, errors, remapping in _rows(text):
        if errors.isdigit() and int(errors):
            yield GpuFault(number, f"{errors} uncorrected ECC errors")
        if remapping not in ("0", "No") and not remapping.startswith("["):
            yield GpuFault(number, "row remapping failed")


def of_kernel(text: str, messages: str) -> Iterator[GpuFault]:
    """Xid errors in the kernel's messages, by the bus ids in the lines of nvidia-smi. An error of a GPU that nvidia-smi
    does not list is a fault of the machine."""
    gpus = {_bus(bus): number for number, bus, _, _ in _rows(text)}
    for found in XID.finditer(messages):
        if (reason := XIDS.get(int(found["xid"]))) is None:
            continue
        gpu, fault = gpus.get(_bus(found["bus"])), f"Xid {found['xid']}, {reason}"
        yield GpuFault(gpu, fault if gpu is not None else f"{fault}, at {found['bus']}")


def kernel_messages() -> str:
    """Messages since the start of the machine; empty where they may not be read."""
    found = []
    with contextlib.suppress(OSError):
        handle = os.open("/dev/kmsg", os.O_RDONLY | os.O_NONBLOCK)
        try:
            with contextlib.suppress(BlockingIOError):
                while True:
                    with contextlib.suppress(BrokenPipeError):  # the message was overwritten meanwhile
                        found.append(os.read(handle, 8192).decode(errors="replace"))
        finally:
            os.close(handle)
    return "".join(each for each in found if "Xid" in each)


def read_reports(folder: Path) -> dict[str, list[str]]:
    """Faults by machine, from the files that the machines have written."""
    found = {}
    for file in sorted(folder.glob("health-*.json")):
        told = read_json(file)
        if isinstance(told, dict) and told.get("faults"):
            faulty = [str(GpuFault(**each)) for each in told["faults"]]
            found[str(told["node"])] = faulty
    return found


def main(folder: str) -> int:
    found = faults()
    node = os.environ.get("SLURMD_NODENAME") or os.environ.get(NODE_NAME) or socket.gethostname()
    told = {"node": node, "faults": [asdict(each) for each in found]}
    write_json(Path(folder) / f"health-{node}.json", told)
    for each in found:
        print(f"{node}: {each}", file=sys.stderr)
    return FAULTY if found else 0


def _rows(text: str) -> Iterator[tuple[int, str, str, str]]:
    for line in text.splitlines():
        fields = [field.strip() for field in line.split(",")]
        if len(fields) == 4 and fields[0].isdigit():
            yield int(fields[0]), fields[1], fields[2], fields[3]


def _bus(text: str) -> str:
    """Bus and device: nvidia-smi and the driver write domain and function differently."""
    return ":".join(text.lower().partition(".")[0].split(":")[-2:])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
