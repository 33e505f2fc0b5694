"""State machine of an engine's weights, shared by the native engine and vLLM.

    whole --begin--> updating --finish(version)--> whole, with a newer version
                     updating --abort--> torn: nothing is computed until another update is finished

`torn` means that the weights are missing, or partly of one version and partly of another.
"""

from __future__ import annotations

from rondo.base.errors import Conflict
from rondo.client.engine import WeightState


class WeightUpdate:
    def __init__(self) -> None:
        self.updating = False
        self.torn = False

    def check(self, asleep: bool, version: int | None, present: int) -> None:
        """Raises an error if an update to `version` cannot start now; `present` is the version of the
        weights in use."""
        if self.updating:
            raise Conflict("a weight update is already in progress.")
        if asleep:
            raise Conflict("the weights are asleep, so there is nothing to write to: wake 'weights' first.")
        if version is not None:
            check_newer(version, present)

    def begin(self) -> None:
        """Marks the weights as torn: they are about to be overwritten in place."""
        self.updating = self.torn = True

    def finish(self, version: int, present: int) -> None:
        if not self.updating:
            raise Conflict("no weight update is in progress: start one first.")
        check_newer(version, present)
        self.updating = self.torn = False

    def abort(self) -> None:
        """Ends the update of a failed writer. Another update may start; until one is finished the weights stay torn."""
        self.updating = False

    def check_sleep(self) -> None:
        if self.updating:
            raise Conflict("a weight update is in progress: finish or abort it before the engine sleeps.")

    def state(self, asleep: bool) -> WeightState:
        return WeightState(self.updating, not self.torn, asleep)


def check_newer(version: int, present: int) -> None:
    if version <= present:
        raise Conflict(
            f"weight version {version} is not newer than {present}. "
            "Finish the update with a newer version, or abort it."
        )
