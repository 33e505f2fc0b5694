"""Results and failures of leased prompts, within a transaction of the caller."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa

from rondo.control.config import QueueConfig
from rondo.control.queue.rows import IDS, held
from rondo.control.queue.tally import Tally
from rondo.control.queue.work import Finished, Verdict
from rondo.control.store.clock import MICROSECONDS
from rondo.control.tables import requests, results

REASON_CHARACTERS = 4000
"""Of an error that is stored with the state; a longer one is cut in the middle."""

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

Failure = tuple[Any, str, bool]
"""A row with `id`, `group_id`, `model` and `attempts`; the reason; whether another attempt may help."""


def finish(db: sa.Connection, finished: Sequence[Finished], now: int, config: QueueConfig) -> list[Verdict]:
    rows = held(db, [each.id for each in finished])
    tally, verdicts = Tally(), list[Verdict]()
    done: list[tuple[int, str | None]] = []
    failures: list[Failure] = []
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
            tally.moved(row.model, row.state, "done")
            tally.ended[row.group_id] += 1
        elif late:
            verdict = "resting"
        else:
            verdict = given[each.id] = outcome(row.attempts, each.again, config)
            failures.append((row, each.error, each.again))
        verdicts.append(verdict)
    if done:
        db.execute(_DONE, {"ids": [id for id, _ in done]})
        db.execute(_INSERT_RESULTS, [{"id": id, "result": result} for id, result in done])
    fail(db, failures, now, config, tally)
    tally.write(db)
    return verdicts


def fail(
    db: sa.Connection, failures: Sequence[Failure], now: int, config: QueueConfig, tally: Tally
) -> list[Verdict]:
    """Leased rows rest until their next attempt, or become dead letters."""
    verdicts = [outcome(row.attempts, again, config) for row, _, again in failures]
    if failures:
        db.execute(
            _FAIL,
            [
                {
                    "wanted": row.id,
                    "next": verdict,
                    "why": _shortened(reason),
                    "rested": now + _rest(row.attempts, config) if verdict == "resting" else None,
                }
                for (row, reason, _), verdict in zip(failures, verdicts)
            ],
        )
    for (row, _, _), verdict in zip(failures, verdicts):
        tally.moved(row.model, "leased", verdict)
        if verdict == "dead":
            tally.ended[row.group_id] += 1
    return verdicts


def outcome(attempts: int, again: bool, config: QueueConfig) -> Verdict:
    return "resting" if again and attempts < config.attempts else "dead"


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
