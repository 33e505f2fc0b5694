"""Limits of waits in tests, which a busy machine must not break."""

import os

import pytest

from support.waiting import FEWEST, LOAD, scaled


def test_a_busy_machine_has_more_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(LOAD, raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    monkeypatch.setattr(os, "getloadavg", lambda: (0.0, 0.0, 0.0))
    assert scaled(10) == 10 * FEWEST
    monkeypatch.setattr(os, "getloadavg", lambda: (20.0, 0.0, 0.0))
    assert scaled(10) == 110


def test_the_factor_can_be_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(LOAD, "7")
    assert scaled(10) == 70
    monkeypatch.setenv(LOAD, "0.1")
    assert scaled(10) == 10, "never less than on an idle machine"
