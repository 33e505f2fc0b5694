"""How vLLM's processes wait for one another, without vLLM."""

import os
import sys
from types import SimpleNamespace

import pytest

from rondo.engine.vllm.child.waiting import _sleep, rest


@pytest.mark.parametrize("on_cpu", [True, False])
def test_processes_on_a_cpu_sleep_where_they_would_yield(
    monkeypatch: pytest.MonkeyPatch, on_cpu: bool
) -> None:
    platforms = SimpleNamespace(current_platform=SimpleNamespace(is_cpu=lambda: on_cpu))
    monkeypatch.setitem(sys.modules, "vllm", SimpleNamespace(platforms=platforms))
    monkeypatch.setitem(sys.modules, "vllm.platforms", platforms)
    monkeypatch.setattr(os, "sched_yield", os.sched_yield)
    rest()
    assert (os.sched_yield is _sleep) == on_cpu
    os.sched_yield()
