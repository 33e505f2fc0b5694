"""An engine that switches to a version in a segment of this host."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol

from rondo.base.errors import RondoError
from rondo.client.engine import RunningRequests


class WeightReceiver(Protocol):
    """An engine that takes a version in vLLM's steps; `rondo.client.Client` is one."""

    def start_weight_update(self) -> object: ...

    def update_weights(self, update_info: Mapping[str, Any]) -> object: ...

    def finish_weight_update(
        self, weight_version: int | str | None = None, requests: RunningRequests = "retain"
    ) -> object: ...

    def abort_weight_update(self) -> object: ...


def switch(
    receiver: WeightReceiver,
    folder: Path,
    version: int,
    requests: RunningRequests,
    permitted: Callable[[], None] = lambda: None,
) -> None:
    """Switches an engine to a version. `permitted` raises an error if the version must not be served after all; it is
    called when the engine has fetched and verified the version."""
    receiver.start_weight_update()
    try:
        receiver.update_weights({"source": f"shm:{folder}", "version": version})
        permitted()
        receiver.finish_weight_update(version, requests)
    except BaseException:
        with suppress(RondoError):
            receiver.abort_weight_update()
        raise
