"""State machine of an engine's weights, shared by the native engine and vLLM.

    whole --begin--> updating --finish(version)--> whole, with a newer version
                     updating --abort--> torn: nothing is computed until another update is finished
    whole --stage--> updating, whole: the new version is read beside the old one
                     updating --abort--> whole, with the old version
    whole --lose--> torn --restore--> whole

`torn` means that the weights are missing, or partly of one version and partly of another.
"""

from __future__ import annotations

from rondo.base.errors import Conflict
from rondo.client.engine import WeightState


class WeightUpdate:
    def __init__(self) -> None:
        self._updating = False
        self._torn = False

    @property
    def updating(self) -> bool:
        return self._updating

    @property
    def torn(self) -> bool:
        return self._torn

    def check(self, asleep: bool, version: int | None, present: int) -> None:
        """Raises an error if an update to `version` cannot start now; `present` is the version of the
        weights in use."""
        if self._updating:
            raise Conflict("a weight update is already in progress.")
        if asleep:
            raise Conflict("the weights are asleep, so there is nothing to write to: wake 'weights' first.")
        if version is not None:
            check_newer(version, present)

    def begin(self) -> None:
        """Starts an update in place: the weights are about to be overwritten."""
        self._updating = self._torn = True

    def stage(self) -> None:
        """Starts an update beside the weights in use, which stay whole until `lose`."""
        self._updating = True

    def finish(self, version: int, present: int) -> None:
        if not self._updating:
            raise Conflict("no weight update is in progress: start one first.")
        check_newer(version, present)
        self._updating = self._torn = False

    def abort(self) -> None:
        """Ends the update of a failed writer; another update may start. Overwritten weights stay torn until then."""
        self._updating = False

    def lose(self) -> None:
        """The weights were dropped, or only some ranks have the new version."""
        self._torn = True

    def restore(self) -> None:
        """A whole version was loaded again."""
        self._torn = False

    def check_sleep(self) -> None:
        if self._updating:
            raise Conflict("a weight update is in progress: finish or abort it before the engine sleeps.")

    def state(self, asleep: bool) -> WeightState:
        return WeightState(self._updating, not self._torn, asleep)


def check_newer(version: int, present: int) -> None:
    if version <= present:
        raise Conflict(
            f"weight version {version} is not newer than {present}. "
            "Finish the update with a newer version, or abort it."
        )
