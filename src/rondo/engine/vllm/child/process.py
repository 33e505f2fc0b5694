"""A vLLM server process. It listens on a socket file that only this user can open, so that its API needs no key."""

from __future__ import annotations

import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from rondo.base.errors import ConfigError, Unavailable
from rondo.base.process import exit_reason, kill, last_line, start, stop
from rondo.base.telemetry.activity import activity
from rondo.base.telemetry.log import get_logger
from rondo.engine.vllm.child.parent import SAYS_VERSION
from rondo.engine.vllm.client import VllmClient
from rondo.engine.vllm.folder import RunFolder
from rondo.engine.vllm.versions import check_version

log = get_logger("rondo.engine.vllm")

PROGRAM = ("-m", "rondo_vllm_parent")
PROGRESS_SECONDS = 15
PROBE_SECONDS = 5
STOP_SECONDS = 10
NO_ERROR = re.compile(r"\b(?:DEBUG|INFO|WARNING) \d\d-\d\d ")
NO_MODULE = re.compile(r"No module named '?vllm(\.|'|$)", re.MULTILINE)


class VllmProcess:
    """A vLLM server, started and ended with all of its children; it may be started again."""

    def __init__(
        self, python: str | None, environment: Callable[[RunFolder], dict[str, str]], seconds: float
    ) -> None:
        self.python = python or sys.executable
        self.seconds = seconds
        self._folder = RunFolder()
        self._environment = environment(self._folder)
        self._log = self._folder.path / "log"
        self._process: subprocess.Popen[bytes] | None = None
        self.socket = str(self._folder.path / "socket")

    def start(self, arguments: Sequence[str], stopped: threading.Event) -> None:
        """Starts vLLM and returns when it responds. Setting `stopped` ends the wait early."""
        self.kill()
        Path(self.socket).unlink(missing_ok=True)
        command = [self.python, *PROGRAM, "--uds", self.socket, *arguments]
        try:
            with self._log.open("wb") as out:
                self._process = start(
                    command, stdout=out, stderr=out, env=self._environment, cwd=self._folder.path
                )
        except OSError as error:
            raise ConfigError(
                f"vllm.python is {self.python}, which cannot be started: {error.strerror}. Name the Python that vLLM "
                "is installed for.",
                param="vllm.python",
            ) from error
        try:
            with activity("starting vLLM"):
                self._wait_until_it_answers(stopped)
        except BaseException:
            self.kill()
            raise

    def wait(self) -> str:
        """Waits until vLLM ends; returns a description of the exit."""
        assert self._process is not None
        return exit_reason(self._process.wait())

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def stop(self) -> None:
        """Stops vLLM gracefully, by force after a timeout, and removes its files."""
        if self._process is not None:
            stop(self._process, STOP_SECONDS)
        self._folder.remove()

    def kill(self) -> None:
        """Kills the server and its children, including children that outlived it."""
        if self._process is not None:
            kill(self._process)

    def _wait_until_it_answers(self, stopped: threading.Event) -> None:
        assert self._process is not None
        begun = said = time.monotonic()
        version = ""
        with VllmClient(self.socket) as client:
            while True:
                now, answers = time.monotonic(), client.health(PROBE_SECONDS)
                if not version and (version := self._version()):
                    check_version(version)
                if answers:
                    break
                if self._process.poll() is not None:
                    raise self._failed(self.wait())
                if stopped.is_set():
                    raise Unavailable("the engine was stopped while vLLM started.", code="shutting_down")
                if now - begun > self.seconds:
                    raise self._failed(
                        f"does not answer after {self.seconds:g} s (engine.vllm.start_seconds)"
                    )
                if now - said > PROGRESS_SECONDS:
                    said = now
                    log.info(
                        "vLLM is starting",
                        extra={"seconds": round(now - begun), "last_line": self._last_line()},
                    )
                stopped.wait(0.2)
        log.info(
            "vLLM has started",
            extra={
                "seconds": round(time.monotonic() - begun),
                "version": version or "unknown",
                "pid": self._process.pid,
            },
        )

    def _failed(self, how: str) -> ConfigError:
        text = self._log.read_text("utf-8", "replace")
        if NO_MODULE.search(text):
            return ConfigError(
                f"vLLM is not installed for {self.python}. Install it there, or name another Python with "
                "--engine.vllm.python=...",
                param="vllm.python",
            )
        log.error("vLLM did not start; the end of its log:\n%s", text[-4000:])
        return ConfigError(f"vLLM {how}: {first_error(text)}", param="backend")

    def _last_line(self) -> str:
        return last_line(self._log.read_bytes(), 200)

    def _version(self) -> str:
        """vLLM's version, which is logged before vLLM is imported."""
        said = re.search(f"^{SAYS_VERSION}(.+)$", self._log.read_text("utf-8", "replace"), re.MULTILINE)
        return said[1] if said else ""


def first_error(text: str) -> str:
    """The first error in the log; the later ones are its consequences."""
    lines = [line for line in text.strip().splitlines() if not NO_ERROR.search(line)]
    named = re.search(r"\b\w*(?:Error|Exception): .+|.*\berror: .+", "\n".join(lines))
    return (named.group() if named else lines[-1] if lines else "it said nothing").strip()
