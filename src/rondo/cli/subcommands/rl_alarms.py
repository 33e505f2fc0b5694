"""`rondo rl alarms`: alarms of an RL job."""

from __future__ import annotations

import json

from rondo.cli.options.arguments import VerbParser
from rondo.jobs.folders import find_job


def run(argv: list[str]) -> int:
    parser = VerbParser(
        "rondo rl alarms", "What was seen of a job that should not be: since when, and what to do."
    )
    parser.add_argument(
        "job", metavar="JOB", help="a job's name, or the first 6 or more characters of its hash"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON array")
    given = parser.parse_args(argv)

    from rondo.rl.record.events import EventLog

    events = EventLog(find_job(given.job))
    found = [event for event in events.all() if event["kind"] == "alarm"]
    standing = {event["alarm"]: event["step"] for event in events.standing()}
    if given.json:
        print(
            json.dumps([{**event, "over": standing.get(event["alarm"]) != event["step"]} for event in found])
        )
        return 0
    if not found:
        print("There was no alarm.")
    for event in found:
        state = "" if standing.get(event["alarm"]) == event["step"] else " (over)"
        print(f"step {event['step']}  {event['alarm']}{state}: since step {event['since']} {event['saw']}.")
        print(f"  what to do: {event['advice']}")
    return 0
