"""Results and failures of leased prompts, within a transaction of the caller.

A crash of an engine or a worker while several requests were in flight counts no attempt: each of them becomes a suspect
and returns to the queue at once, for a cohort of a quarter of that number. The innocent ones of a cohort finish, and
the request that causes the crashes reaches a cohort of one, where each crash counts an attempt.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from rondo.control.config import QueueConfig
from rondo.control.queue.fair import HEAD_OF_LANE
from rondo.control.queue.rows import IDS, held
from rondo.control.queue.tally import Tally
from rondo.control.queue.work import Finished, Verdict
from rondo.control.store.clock import MICROSECONDS
from rondo.control.tables import requests, results

REASON_CHARACTERS = 4000
"""Of an error that is stored with the state; a longer one is cut in the middle."""

COHORTS = 4
"""Number of cohorts into which the requests of a crash are divided."""

_DONE = sa.update(requests).where(requests.c.id.in_(IDS)).values(state="done", reason=None, until=None)
_INSERT_RESULTS = sa.insert(results)
_FAIL = (
    sa.update(requests)
    .where(requests.c.id == sa.bindparam("wanted"))
    .values(
        state=sa.bindparam("next"),
        reason=sa.bindparam("why"),
        until=sa.bindparam("rested"),
    )
)
_SUSPECT = (
    sa.update(requests)
    .where(requests.c.id == sa.bindparam("wanted"))
    .values(
        state="queued",
        until=None,
        attempts=requests.c.attempts - 1,
        turn=HEAD_OF_LANE,
        reason=sa.bindparam("why"),
        cohort=sa.bindparam("size"),
    )
)


@dataclass(frozen=True)
class FailedAttempt:
    row: Any
    """With `id`, `group_id`, `model`, `base`, `attempts` and `cohort`."""
    reason: str
    again: bool
    in_flight: int = 0

    @property
    def is_shared(self) -> bool:
        """Whether another request may have caused the crash."""
        return self.again and self.in_flight > 1 and self.row.cohort != 1

    @property
    def cohort(self) -> int:
        return max(1, min(self.in_flight, self.row.cohort or self.in_flight) // COHORTS)


def finish(
    db: sa.Connection, finished: Sequence[Finished], now: int, config: QueueConfig, bases: set[str]
) -> list[Verdict]:
    """Base models of requests that return to the queue are added to `bases`."""
    rows = held(db, [each.id for each in finished])
    tally, verdicts = Tally(), list[Verdict]()
    done: list[tuple[int, str | None]] = []
    failures: list[FailedAttempt] = []
    given: dict[str, Verdict] = {}
    """A prompt may be in the list twice."""
    for each in finished:
        row = rows.get(each.id)
        if row is None:
            verdicts.append("unknown")
            continue
        late = row.state in ("resting", "queued")
        if row.lease != each.lease or row.state == "cancelled":
            verdict: Verdict = "stale"
        elif each.id in given:
            verdict = given[each.id]
        elif row.state in ("done", "dead"):  # a repetition after a lost answer
            verdict = row.state
        elif each.error is None:
            verdict = given[each.id] = "done"
            done.append((row.id, each.result))
            tally.answered(row, each.input_tokens, each.output_tokens)
        elif late:
            verdict = "resting"
        else:
            failure = FailedAttempt(row, each.error, each.again, each.in_flight)
            verdict = given[each.id] = outcome(failure, config)
            failures.append(failure)
        verdicts.append(verdict)
    if done:
        db.execute(_DONE, {"ids": [id for id, _ in done]})
        db.execute(_INSERT_RESULTS, [{"id": id, "result": result} for id, result in done])
    fail(db, failures, now, config, tally, bases)
    tally.write(db)
    return verdicts


def fail(
    db: sa.Connection,
    failures: Sequence[FailedAttempt],
    now: int,
    config: QueueConfig,
    tally: Tally,
    bases: set[str],
) -> list[Verdict]:
    """Leased rows rest until their next attempt, return to the queue as suspects, or become dead letters."""
    shared = [each for each in failures if each.is_shared]
    counted = [(each, outcome(each, config)) for each in failures if not each.is_shared]
    if shared:
        values = [
            {"wanted": each.row.id, "why": _shortened(each.reason), "size": each.cohort} for each in shared
        ]
        db.execute(_SUSPECT, values)
    if counted:
        db.execute(
            _FAIL,
            [
                {
                    "wanted": each.row.id,
                    "next": verdict,
                    "why": _shortened(each.reason),
                    "rested": now + _rest(each.row.attempts, config) if verdict == "resting" else None,
                }
                for each, verdict in counted
            ],
        )
    for each in shared:
        tally.moved(each.row.model, "leased", "queued")
        bases.add(each.row.base)
    for each, verdict in counted:
        tally.moved(each.row.model, "leased", verdict)
        if verdict == "dead":
            tally.ended[each.row.group_id] += 1
    return [outcome(each, config) for each in failures]


def outcome(failure: FailedAttempt, config: QueueConfig) -> Verdict:
    again = failure.is_shared or (failure.again and failure.row.attempts < config.attempts)
    return "resting" if again else "dead"


def _rest(attempts: int, config: QueueConfig) -> int:
    """Microseconds: twice as long after each attempt."""
    return int(min(config.rest * 2.0 ** min(attempts - 1, 60), config.longest_rest) * MICROSECONDS)


def _shortened(reason: str) -> str:
    """Without zero bytes, which PostgreSQL does not store."""
    reason = reason.replace("\0", "\N{REPLACEMENT CHARACTER}")
    if len(reason) <= REASON_CHARACTERS:
        return reason
    half = REASON_CHARACTERS // 2
    return f"{reason[:half]}\n[...]\n{reason[-half:]}"
