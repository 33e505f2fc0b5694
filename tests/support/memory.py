"""What a step needs of this process's memory."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest

RESET = Path("/proc/self/clear_refs")


def peak_of(step: Callable[[], object]) -> int:
    """Bytes above what the process had before."""
    if not RESET.exists():
        pytest.skip("the peak is read from Linux's /proc")
    RESET.write_text("5")
    before = _resident("VmRSS")
    step()
    return _resident("VmHWM") - before


def _resident(key: str) -> int:
    found = re.search(rf"{key}:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert found is not None
    return int(found[1]) << 10
