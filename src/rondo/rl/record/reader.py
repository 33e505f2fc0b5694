"""Reader of a job's stored rollouts: queries over their facts, and access to single rollouts. `store.py` has the
format.
"""

from __future__ import annotations

import heapq
import io
import json
import re
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from rondo.base.errors import InvalidRequest, NotFound, StorageError
from rondo.rl.record.query import OWN, TEXT, WORDS, Condition, RolloutSummary, Texts, number
from rondo.rl.record.store import FACTS, TEXTS, file_of, steps_in

Order = Literal["asc", "desc"]
ID = re.compile("([0-9]{1,9})-([0-9]{1,9})-([0-9]{1,9})")
BROKEN = (zipfile.BadZipFile, zlib.error, KeyError, ValueError, EOFError, NotImplementedError)


@dataclass(frozen=True)
class Page:
    entries: list[RolloutSummary]
    more: bool


@dataclass(frozen=True)
class StoredSegment:
    prompt_ids: list[int]
    token_ids: list[int]
    sampled: list[bool]
    logprobs: list[float]
    versions: list[int]
    advantages: list[float]
    """Advantage of each token; empty if the segment was not trained on."""


@dataclass(frozen=True)
class Whole:
    """A complete rollout."""

    entry: RolloutSummary
    texts: Texts
    pieces: list[StoredSegment]
    """One segment, or several for an episode whose history was rewritten."""


class RolloutReader:
    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def steps(self) -> list[int]:
        """Stored steps, newest first."""
        return steps_in(self._folder)

    def find(
        self,
        where: Sequence[Condition] = (),
        *,
        sort: str = "step",
        order: Order = "desc",
        limit: int = 20,
        after: str | None = None,
    ) -> Page:
        """The first `limit` rollouts that meet every condition, or the first after the rollout `after`.

        Sorted by step, only the necessary files are read. Any other order reads the facts of all steps that the
        conditions admit.
        """
        if sort in (*WORDS, *TEXT):
            raise InvalidRequest(f"rollouts are sorted by a number, and {sort} is none.", param="sort")
        known = set[str]()
        found: Iterator[RolloutSummary]
        if sort == "step":
            found = self._in_order(where, order, known, None if after is None else _place(after))
            chosen = list(islice(found, limit + 1))
        else:
            key = _key(sort, order)
            last = None if after is None else key(self.show(after).entry)
            matching = self._all(where, self.steps(), known)
            found = (entry for entry in matching if last is None or key(entry) > last)
            chosen = heapq.nsmallest(limit + 1, found, key=key)
        _check_parts([condition.name for condition in where] + [sort], known)
        return Page(chosen[:limit], len(chosen) > limit)

    def show(self, id: str) -> Whole:
        step, group, sample = _place(id)
        try:
            with self._open(step) as archive:
                entry = next((e for e in _entries(archive) if e.id == id), None)
                if entry is None:
                    raise NotFound(f"Step {step} has no rollout {id!r}.", param="id")
                texts = _texts(archive)[group][sample]
                values = np.load(io.BytesIO(archive.read(f"tokens/{group}.npy")), allow_pickle=False)
        except FileNotFoundError:
            raise NotFound(
                f"There is no rollout {id!r}: {_kept(self.steps())}", param="id", code="rollout_not_found"
            ) from None
        except BROKEN as error:
            raise self._damaged(step, error) from error
        return Whole(entry, texts, [_piece(values, place, entry) for place in entry.pieces])

    def texts(self, entries: Iterable[RolloutSummary]) -> dict[str, Texts]:
        """Texts of the rollouts; rollouts of deleted steps are missing."""
        by_step: dict[int, list[RolloutSummary]] = {}
        for entry in entries:
            by_step.setdefault(entry.step, []).append(entry)
        found: dict[str, Texts] = {}
        for step, own in by_step.items():
            try:
                with self._open(step) as archive:
                    texts = _texts(archive)
            except FileNotFoundError:
                continue
            except BROKEN as error:
                raise self._damaged(step, error) from error
            found |= {entry.id: texts[entry.group][entry.sample] for entry in own}
        return found

    def _in_order(
        self,
        where: Sequence[Condition],
        order: Order,
        known: set[str],
        after: tuple[int, int, int] | None,
    ) -> Iterator[RolloutSummary]:
        """Rollouts by step, and by group and sample within a step."""
        steps = self.steps() if order == "desc" else self.steps()[::-1]
        if after is not None:
            steps = [step for step in steps if (step <= after[0] if order == "desc" else step >= after[0])]
        for entry in self._all(where, steps, known):
            if after is None or entry.step != after[0] or (entry.group, entry.sample) > after[1:]:
                yield entry

    def _all(
        self, where: Sequence[Condition], steps: Iterable[int], known: set[str]
    ) -> Iterator[RolloutSummary]:
        """Texts are read only for conditions on texts, and only in steps with rollouts that meet all other
        conditions.
        """
        of_step = [condition for condition in where if condition.name == "step"]
        of_facts = [condition for condition in where if condition.name != "step" and not condition.on_text]
        of_text = [condition for condition in where if condition.on_text]
        for step in steps:
            if all(condition.compares(step) for condition in of_step):
                yield from self._of_step(step, of_facts, of_text, known)

    def _of_step(
        self, step: int, of_facts: Sequence[Condition], of_text: Sequence[Condition], known: set[str]
    ) -> list[RolloutSummary]:
        try:
            with self._open(step) as archive:
                entries = _entries(archive)
                known.update(*(entry.parts for entry in entries), OWN if entries else ())
                entries = [entry for entry in entries if all(c.meets(entry) for c in of_facts)]
                if not of_text or not entries:
                    return entries
                texts = _texts(archive)
        except FileNotFoundError:  # the step was deleted during the query
            return []
        except BROKEN as error:
            raise self._damaged(step, error) from error
        return [e for e in entries if all(c.reads(texts[e.group][e.sample]) for c in of_text)]

    def _open(self, step: int) -> zipfile.ZipFile:
        return zipfile.ZipFile(file_of(self._folder, step))

    def _damaged(self, step: int, error: Exception) -> StorageError:
        file = file_of(self._folder, step)
        return StorageError(
            f"{file} is damaged ({error}). Remove it: the other steps can be read without it."
        )


def _piece(values: NDArray[np.int32], place: Sequence[int], entry: RolloutSummary) -> StoredSegment:
    prompt, asked, begin, count = place
    own = values[:, begin : begin + count]
    return StoredSegment(
        prompt_ids=values[0, prompt : prompt + asked].tolist(),
        token_ids=own[0].tolist(),
        sampled=own[2].astype(bool).tolist(),
        logprobs=own[3].view(np.float32).tolist(),
        versions=own[1].tolist(),
        advantages=[] if entry.advantage is None else own[4].view(np.float32).tolist(),
    )


def _entries(archive: zipfile.ZipFile) -> list[RolloutSummary]:
    return [RolloutSummary.of(json.loads(line)) for line in archive.read(FACTS).decode().splitlines()]


def _texts(archive: zipfile.ZipFile) -> list[list[Texts]]:
    """Texts by problem and sample."""
    found = []
    for line in archive.read(TEXTS).decode().splitlines():
        said = json.loads(line)
        found.append(
            [Texts(said["messages"], said["facts"], a["text"], a["detail"]) for a in said["answers"]]
        )
    return found


def _place(id: str) -> tuple[int, int, int]:
    found = ID.fullmatch(id)
    if found is None:
        raise InvalidRequest(
            f"{id!r} names no rollout: an id is step-problem-sample, such as 12-3-0.", param="id"
        )
    return int(found[1]), int(found[2]), int(found[3])


def _kept(steps: Sequence[int]) -> str:
    if not steps:
        return "the job has stored none (rl.rollouts.keep says how many steps stay)."
    return f"steps {steps[-1]} to {steps[0]} are kept (rl.rollouts.keep says how many stay)."


def _key(sort: str, order: Order) -> Any:
    """Sort key. Rollouts without the value are last; equal values are ordered by step."""
    sign = -1.0 if order == "desc" else 1.0

    def key(entry: RolloutSummary) -> tuple[bool, float, tuple[int, int, int]]:
        value = number(entry, sort)
        return value is None, sign * (value or 0.0), (-entry.step, entry.group, entry.sample)

    return key


def _check_parts(names: Iterable[str], known: set[str]) -> None:
    """Reject a name that no rollout has, unless there are no rollouts to compare with."""
    for name in names:
        if known and name not in known:
            has = ", ".join([*OWN, *sorted(known.difference(OWN))])
            raise InvalidRequest(f"rollouts have no {name!r}; they have {has}.", param="where")
