"""The end of a writer: replicas on other hosts take its newest version before its segment is removed."""

from __future__ import annotations

import time
from collections.abc import Set
from dataclasses import dataclass

from rondo.base.errors import NotFound
from rondo.weights.directory.types import WeightDirectory

POLL_SECONDS = 0.2


@dataclass(frozen=True)
class Handover:
    """Owners of replicas with the version (`holders`), and with the version before it (`late`)."""

    holders: Set[str]
    late: Set[str]


def hand_over(
    directory: WeightDirectory,
    model: str,
    version: int,
    before: int,
    owner: str,
    seconds: float,
    *,
    required: bool,
) -> Handover:
    """Waits at most `seconds` until every replica that held the version `before` holds `version`. `required`: and until
    there is at least one."""
    until = time.monotonic() + seconds
    while True:
        found = Handover(
            _holders(directory, model, version) - {owner}, _holders(directory, model, before) - {owner}
        )
        if ((found.holders or not required) and not found.late) or time.monotonic() > until:
            return found
        time.sleep(POLL_SECONDS)


def _holders(directory: WeightDirectory, model: str, version: int) -> set[str]:
    try:
        return {each.owner for each in directory.lookup(model, version)}
    except NotFound:
        return set()
