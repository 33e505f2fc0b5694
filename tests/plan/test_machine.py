"""The device at hand, from the system's tables and nvidia-smi."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from rondo.plan import machine
from rondo.plan.machine import device_at_hand

SMI = """#!/bin/sh
case "$*" in
  *"-i 1") echo "NVIDIA GeForce RTX 4090, 24564, 24100" ;;
  *"-i 0") echo "NVIDIA Thing X, 8192, 8000" ;;
  *) exit 6 ;;
esac
"""


def test_memory_and_name_of_this_cpu():
    found = device_at_hand("cpu")
    assert found is not None
    assert found.free is not None
    assert 0 < found.free <= found.memory <= os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    assert found == device_at_hand("cpu") or found.memory == device_at_hand("cpu").memory  # type: ignore[union-attr]


@pytest.fixture
def gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A program in place of the driver's, which this machine does not have."""
    (tmp_path / "nvidia-smi").write_text(SMI)
    (tmp_path / "nvidia-smi").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    machine._smi.cache_clear()
    yield
    machine._smi.cache_clear()


@pytest.mark.usefixtures("gpus")
def test_gpus_by_index(monkeypatch: pytest.MonkeyPatch):
    known, unknown = device_at_hand("cuda:1"), device_at_hand("cuda")
    assert known is not None
    assert (known.name, known.kind, known.memory, known.free) == (
        "GeForce RTX 4090",
        "cuda",
        24564 * 2**20,
        24100 * 2**20,
    )
    assert known.gpu is not None
    assert unknown is not None
    assert unknown.gpu is None
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    assert device_at_hand("cuda:0") == known
    assert device_at_hand("cuda:1") is None


@pytest.mark.usefixtures("gpus")
def test_other_devices_are_unknown():
    assert device_at_hand("cuda:7") is None
    assert device_at_hand("mps") is None


def test_torch_is_not_imported():
    code = "import sys; from rondo.plan.machine import device_at_hand; device_at_hand('auto'); "
    code += "assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
