"""All parts of `rondo up`: order of start and stop, signals, state file."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress

from rondo.base.errors import Conflict
from rondo.base.lock import locked
from rondo.base.storage.files import write_json
from rondo.base.storage.home import home
from rondo.supervisor.config import UpConfig
from rondo.supervisor.control import ControlEndpoint
from rondo.supervisor.on_demand import OnDemand
from rondo.supervisor.part import Part
from rondo.supervisor.state import lock_file, running_state, state_file

LOCK_SECONDS = 1.0


class Supervisor:
    """Parts start together and stop in order: the first one, the gateway, finishes its requests before the engines.
    `on_demand` is called when they have been started: it reads the catalog of models meanwhile."""

    def __init__(
        self,
        parts: Sequence[Part],
        config: UpConfig,
        url: str,
        control: ControlEndpoint | None = None,
        on_demand: Callable[[], OnDemand | None] = lambda: None,
    ) -> None:
        self.parts, self.config, self.url = list(parts), config, url
        self.on_demand: OnDemand | None = None
        self.named = threading.Event()
        """Set when the parts have the names of their models."""
        self._control, self._make_on_demand = control, on_demand
        self._ended = threading.Event()
        self._lock = threading.Lock()
        self._begun = time.time()

    def run(self, on_start: Callable[[], None] = lambda: None) -> None:
        """Blocks until a signal, or until every part has failed."""
        home().mkdir(parents=True, exist_ok=True)
        with ExitStack() as stack:
            if not stack.enter_context(locked(lock_file(), LOCK_SECONDS)):
                raise Conflict(already_running())
            for number in (signal.SIGTERM, signal.SIGINT):
                stack.callback(signal.signal, number, signal.signal(number, self._on_signal))
            self._write_state()
            try:
                for part in self.parts:
                    part.begin(self.config, self._changed)
                on_start()
                self.on_demand = self._make_on_demand()
                if self._control is not None and self.on_demand is not None:
                    self.on_demand.on_change = self._changed
                    self._control.begin(self.on_demand)
                    stack.callback(self._control.close)
                self._write_state()
                self.named.set()
                self._ended.wait()
            finally:
                self._stop_parts()
                with suppress(OSError):
                    state_file().unlink()

    def _stop_parts(self) -> None:
        seconds = self.config.stop_seconds
        gateway, *engines = self.parts
        gateway.end(seconds)
        ending = [threading.Thread(target=part.end, args=(seconds,)) for part in engines]
        if self.on_demand is not None:
            ending.append(threading.Thread(target=self.on_demand.stop))
        for thread in ending:
            thread.start()
        for thread in ending:
            thread.join()

    def _on_signal(self, number: int, frame: object) -> None:
        if self._ended.is_set():
            os._exit(128 + number)  # a second signal: the kernel kills the children
        self._ended.set()

    def _changed(self) -> None:
        self._write_state()
        if self.parts and all(part.state == "failed" for part in self.parts):
            self._ended.set()

    def _write_state(self) -> None:
        with self._lock:  # else a state that was read earlier could replace a later one
            on_demand = self.on_demand
            further = [] if on_demand is None else on_demand.rows()
            memory = None if on_demand is None else {"budget": on_demand.budget, "used": on_demand.used}
            state = {
                "pid": os.getpid(),
                "url": self.url,
                "begun": self._begun,
                "parts": [*(part.as_dict() for part in self.parts), *further],
                "memory": memory,
            }
            with suppress(OSError):  # a full disk must not end the service
                write_json(state_file(), state)


def already_running() -> str:
    state = running_state() or {}
    place = f" at {state['url']}" if state.get("url") else ""
    return f"`rondo up` is running already{place}: see `rondo ps`, end it with `rondo down`, or set another RONDO_HOME."
