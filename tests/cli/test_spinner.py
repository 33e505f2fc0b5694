"""Waits over a second are displayed: as a spinner on a terminal, as one line elsewhere."""

import sys
import threading
from collections.abc import Callable

import pytest

from rondo.base.telemetry.activity import activity, display
from rondo.base.telemetry.log import get_logger, setup
from rondo.cli.view import spinner as view
from support.waiting import wait_until


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(view, "DELAY", 0.0)


def shown(monkeypatch: pytest.MonkeyPatch, terminal: bool) -> Callable[[], str]:
    import io

    out = io.StringIO()
    out.isatty = lambda: terminal  # type: ignore[method-assign]
    monkeypatch.setattr(sys, "stderr", out)
    monkeypatch.setenv("TERM", "xterm")
    return out.getvalue


def test_a_spinner_that_is_erased(monkeypatch: pytest.MonkeyPatch) -> None:
    text = shown(monkeypatch, terminal=True)
    with view.spinner():
        with activity("loading the weights of demo"):
            wait_until(lambda: "loading the weights of demo  0 s" in text())
        assert text().endswith(view.ERASE)


def test_a_log_line_has_a_line_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    text = shown(monkeypatch, terminal=True)
    with view.spinner(), activity("starting"):
        wait_until(lambda: "starting" in text())
        handler = setup("human", "info")
        try:
            get_logger("rondo.x").info("loaded")
        finally:
            handler.close()
        line = next(line for line in text().splitlines() if "loaded" in line)
    assert line.rpartition("\r")[2].startswith("\x1b[2K")


def test_one_line_in_a_pipe(monkeypatch: pytest.MonkeyPatch) -> None:
    text = shown(monkeypatch, terminal=False)
    with view.spinner():
        for _ in range(2):
            with activity("starting vLLM"):
                wait_until(lambda: "starting vLLM ..." in text())
    assert text() == "starting vLLM ...\n"


def test_the_innermost_activity_of_any_thread() -> None:
    seen: list[str | None] = []
    with display(seen.append):
        with activity("outer"):
            thread = threading.Thread(target=lambda: _inner())
            thread.start()
            thread.join()
        with display(None), activity("hidden"):
            pass
    assert [text for text in seen if text] == ["outer", "inner", "outer"]
    assert seen[-1] is None


def _inner() -> None:
    with activity("inner"):
        pass
