"""`rondo ps`: the parts that `rondo up` runs."""

from __future__ import annotations

import json
import time
from typing import Any

from rondo.base.units import human_bytes, human_seconds
from rondo.cli.options.arguments import VerbParser
from rondo.cli.view.table import aligned


def run(argv: list[str]) -> int:
    parser = VerbParser("rondo ps", "Show the parts that `rondo up` runs.")
    parser.add_argument("--json", action="store_true", help="print the state as JSON")
    given = parser.parse_args(argv)
    from rondo.supervisor.state import running_state

    state = running_state()
    if given.json:
        print(json.dumps(state))
        return 0
    if state is None:
        print("Nothing is running. Start a gateway and an engine with `rondo up`.")
        return 0
    rows: list[tuple[str, ...]] = [("PART", "STATE", "MODEL", "URL", "PID", "UP", "RESTARTS")]
    rows += [_row(part) for part in state["parts"]]
    print("\n".join(aligned(rows)))
    if memory := state.get("memory"):
        used, budget = human_bytes(memory["used"]), human_bytes(memory["budget"])
        print(f"\nmemory of the engines: about {used} of {budget} (up.memory)")
    return 0


def _row(part: dict[str, Any]) -> tuple[str, ...]:
    up = human_seconds(time.time() - part["since"]) if part["pid"] else part["ended"] or "-"
    name, state, model, url = part["name"], part["state"], part["model"] or "-", part["url"]
    return name, state, model, url, str(part["pid"] or "-"), up, str(part["restarts"])
