"""Rollout storage: one file per step, written atomically; the oldest files are deleted first.

`rollouts/step_<n>.zip` is an ordinary archive. Its members are compressed separately, so that a query reads only the
members that it needs:

    facts.jsonl     one line per rollout: reward, parts, advantage, length and finish reason
    texts.jsonl     one line per problem: its messages, facts and answers
    tokens/<g>.npy  [5, N] of problem g: `COLUMNS` of the prompt's tokens, then of its samples in order;
                    the facts have the place of each
"""

from __future__ import annotations

import hashlib
import io
import json
import re
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from rondo.base.errors import StorageError
from rondo.base.storage.files import atomic_write, storage_error

if TYPE_CHECKING:
    from rondo.rl.rollout.types import Rollout, SampleGroup
    from rondo.rl.tasks.types import Problem

FOLDER = "rollouts"
"""Folder in a job's folder."""
NAME = re.compile(r"step_(\d+)\.zip")
FACTS, TEXTS = "facts.jsonl", "texts.jsonl"
COLUMNS = ("token_id", "version", "sampled", "logprob", "advantage")
"""Rows of a problem's token array, all of 32 bits; the last two are floating-point numbers."""
LEVEL = 1
"""Compression level; higher levels hardly shrink log-probabilities."""
PROBLEM_DIGITS = 8

Place = tuple[int, int, int, int]
"""Place of a segment in the token array: start and length of its prompt, start and length of its own tokens."""
Advantages = Sequence[Sequence[Sequence[float]]]
"""Advantages by problem, sample and token; empty for samples without training. Trailing problems of a step
may be missing.
"""


class RolloutStore:
    """Writer of the rollouts, for the process that holds the job's lock."""

    def __init__(self, folder: Path, keep: int, max_bytes: int) -> None:
        """The last `keep` steps are retained, limited to `max_bytes`."""
        self._folder, self._keep, self._max_bytes = folder, keep, max_bytes

    def put(self, step: int, groups: Sequence[SampleGroup], advantages: Advantages) -> None:
        """Store a step. After a `StorageError` nothing of the step is stored."""
        if not self._keep:
            return
        atomic_write(file_of(self._folder, step), encode(step, groups, advantages))
        self._prune()

    def forget_after(self, step: int) -> None:
        """Delete steps that will be repeated, and temporary files of a killed writer."""
        for later in (each for each in steps_in(self._folder) if each > step):
            self._remove(file_of(self._folder, later))
        for left in self._folder.glob(".step_*.tmp"):
            self._remove(left)

    def _prune(self) -> None:
        taken = 0
        for rank, step in enumerate(steps_in(self._folder)):
            file = file_of(self._folder, step)
            taken += file.stat().st_size
            if rank and (rank >= self._keep or taken > self._max_bytes):
                self._remove(file)

    def _remove(self, file: Path) -> None:
        try:
            file.unlink()
        except OSError as error:
            raise storage_error(file, error) from error


def file_of(folder: Path, step: int) -> Path:
    return folder / f"step_{step}.zip"


def steps_in(folder: Path) -> list[int]:
    """Stored steps, newest first."""
    try:
        names = [entry.name for entry in folder.iterdir()] if folder.is_dir() else []
    except OSError as error:
        raise StorageError(f"Cannot read {folder}: {error.strerror}.") from error
    return sorted((int(found[1]) for name in names if (found := NAME.fullmatch(name))), reverse=True)


def encode(step: int, groups: Sequence[SampleGroup], advantages: Advantages) -> bytes:
    """The archive of a step. Deterministic, so that a repeated step results in the same file."""
    facts: list[str] = []
    texts: list[str] = []
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED, compresslevel=LEVEL) as made:
        for number, group in enumerate(groups):
            learned = advantages[number] if number < len(advantages) else [()] * len(group.samples)
            tokens, places = _tokens(group, learned)
            facts += _facts(step, number, group, learned, places)
            texts.append(_texts(group))
            _add(made, f"tokens/{number}.npy", _array(tokens))
        _add(made, FACTS, "\n".join(facts).encode())
        _add(made, TEXTS, "\n".join(texts).encode())
    return archive.getvalue()


def problem_name(problem: Problem) -> str:
    """Name of a problem, equal in every step."""
    said = json.dumps(list(problem.messages), sort_keys=True, default=str)
    return hashlib.sha256(said.encode()).hexdigest()[:PROBLEM_DIGITS]


def _tokens(
    group: SampleGroup, learned: Sequence[Sequence[float]]
) -> tuple[NDArray[np.int32], list[list[Place]]]:
    """The columns, and the places of each sample's segments. A shared prompt is stored once."""
    columns = _Columns()
    shared = columns.prompt(group.prompt_ids)
    places = []
    for sample, advantages in zip(group.samples, learned, strict=True):
        own = []
        for piece, advantage in zip(sample.pieces, _by_piece(sample, advantages), strict=True):
            alone = piece.prompt_ids is not None and piece.prompt_ids != group.prompt_ids
            prompt = columns.prompt(piece.prompt_ids) if piece.prompt_ids and alone else shared
            own.append((*prompt, *columns.answer(piece, advantage)))
        places.append(own)
    return columns.array(), places


def _by_piece(sample: Rollout, advantages: Sequence[float]) -> list[Sequence[float]]:
    """The advantages split by segment. If they cover only the last segments, the others have none."""
    if not sample.earlier:
        return [advantages]
    found, left = list[Sequence[float]](), len(advantages)
    for piece in reversed(sample.pieces):
        count = len(piece.token_ids)
        found.append(advantages[left - count : left] if 0 < count <= left else ())
        left -= count
    return found[::-1]


class _Columns:
    """Columns as lists until the end, because many small arrays cost more than their content."""

    def __init__(self) -> None:
        self._ids: list[int] = []
        self._versions: list[int] = []
        self._sampled: list[bool] = []
        self._logprobs: list[float] = []
        self._advantages: list[float] = []

    def prompt(self, ids: Sequence[int]) -> tuple[int, int]:
        none = [0] * len(ids)
        return self._put(ids, none, none, none, none)

    def answer(self, piece: Rollout, advantages: Sequence[float]) -> tuple[int, int]:
        learned = advantages or [0.0] * len(piece.token_ids)
        return self._put(piece.token_ids, piece.versions, piece.sampled, piece.logprobs, learned)

    def array(self) -> NDArray[np.int32]:
        whole = np.empty((len(COLUMNS), len(self._ids)), np.int32)
        whole[0], whole[1], whole[2] = self._ids, self._versions, self._sampled
        whole[3] = np.array(self._logprobs, np.float32).view(np.int32)
        whole[4] = np.array(self._advantages, np.float32).view(np.int32)
        return whole

    def _put(
        self,
        ids: Sequence[int],
        versions: Sequence[int],
        sampled: Sequence[bool | int],
        logprobs: Sequence[float],
        advantages: Sequence[float],
    ) -> tuple[int, int]:
        begin = len(self._ids)
        self._ids += ids
        self._versions += versions
        self._sampled += map(bool, sampled)
        self._logprobs += logprobs
        self._advantages += advantages
        return begin, len(ids)


def _facts(
    step: int,
    number: int,
    group: SampleGroup,
    learned: Sequence[Sequence[float]],
    places: Sequence[list[Place]],
) -> list[str]:
    problem, lines = problem_name(group.problem), []
    for index, (sample, advantages) in enumerate(zip(group.samples, learned, strict=True)):
        versions = [
            version
            for piece in sample.pieces
            for version, chosen in zip(piece.versions, piece.sampled, strict=True)
            if chosen
        ]
        fact = {
            "id": f"{step}-{number}-{index}",
            "step": step,
            "problem": problem,
            **_judged(sample),
            "advantage": _mean(sample, advantages),
            "finish_reason": sample.finish_reason,
            "prompt_tokens": places[index][0][1],
            "tokens": sum(place[3] for place in places[index]),
            "sampled": len(versions),
            "versions": [min(versions), max(versions)] if versions else [],
            "pieces": places[index],
        }
        lines.append(json.dumps(fact))
    return lines


def _mean(sample: Rollout, advantages: Sequence[float]) -> float | None:
    """Mean advantage of the sampled tokens."""
    by_piece = zip(sample.pieces, _by_piece(sample, advantages), strict=True)
    found = [
        a for piece, own in by_piece if own for a, chosen in zip(own, piece.sampled, strict=True) if chosen
    ]
    return sum(found) / len(found) if found else None


def _judged(sample: Rollout) -> dict[str, Any]:
    """Outcome, reward and parts; a failed grader results in no reward."""
    score = sample.score
    if score is None:
        return {"outcome": None, "reward": None, "parts": {}}
    return {
        "outcome": score.outcome,
        "reward": score.total if score.outcome == "ok" else None,
        "parts": score.parts,
    }


def _texts(group: SampleGroup) -> str:
    """Texts of a group. Facts other than JSON are stored as strings."""
    answers = [
        {"text": sample.text, "detail": sample.score.detail if sample.score else ""}
        for sample in group.samples
    ]
    said = {"messages": list(group.problem.messages), "facts": group.problem.facts, "answers": answers}
    return json.dumps(said, default=str)


def _array(values: NDArray[np.int32]) -> bytes:
    file = io.BytesIO()
    np.lib.format.write_array(file, values, allow_pickle=False)
    return file.getvalue()


def _add(archive: zipfile.ZipFile, name: str, data: bytes) -> None:
    """Add a member without a timestamp, so that the archive is deterministic."""
    archive.writestr(zipfile.ZipInfo(name), data, zipfile.ZIP_DEFLATED, LEVEL)
