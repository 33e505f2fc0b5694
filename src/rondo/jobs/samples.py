"""Answers sampled during training: `samples.jsonl`, one line per answer.

    {"step": 50, "split": "held_out", "index": 0, "prompt": "...", "answer": "...", "expected": "...", "reward": 1.0}

`split` is `held_out` or `train` for prompts that are sampled repeatedly, and `rollout` for answers of an RL step.
`expected` and `reward` are null if unknown. The first and the last answers to the repeated prompts are the job's
samples before and after training.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from rondo.base.storage.files import atomic_write, storage_error

FILE = "samples.jsonl"
SHOWN = 3
"""Answers of one step that are logged."""
WIDTH = 60
"""Characters of a logged prompt or answer."""


@dataclass(frozen=True)
class SampledAnswer:
    step: int
    split: Literal["held_out", "train", "rollout"]
    index: int
    prompt: str
    answer: str
    expected: str | None = None
    reward: float | None = None

    def __str__(self) -> str:
        reward = "" if self.reward is None else f"  (reward {self.reward:.3g})"
        prompt, answer = " ".join(self.prompt.split()), " ".join(self.answer.split())
        asked = prompt if len(prompt) <= WIDTH else "…" + prompt[-WIDTH + 1 :]  # its end matters more
        return f"{asked} → {answer if len(answer) <= WIDTH else answer[: WIDTH - 1] + '…'}{reward}"


def add_samples(folder: Path, samples: Sequence[SampledAnswer]) -> None:
    place = folder / FILE
    try:
        with place.open("a", encoding="utf-8") as file:
            file.writelines(json.dumps(asdict(sample), ensure_ascii=False) + "\n" for sample in samples)
    except OSError as error:
        raise storage_error(place, error) from error


def read_samples(folder: Path) -> list[SampledAnswer]:
    """All answers in the job's folder, in order; incomplete lines are skipped."""
    try:
        lines = (folder / FILE).read_text("utf-8").splitlines()
    except OSError:
        return []
    found = []
    for line in lines:
        with contextlib.suppress(ValueError, TypeError):
            found.append(SampledAnswer(**json.loads(line)))
    return found


def forget_samples_after(folder: Path, step: int) -> None:
    """Delete answers of steps that will be repeated."""
    found = read_samples(folder)
    kept = [sample for sample in found if sample.step <= step]
    if len(kept) < len(found):
        lines = (json.dumps(asdict(sample), ensure_ascii=False) + "\n" for sample in kept)
        atomic_write(folder / FILE, "".join(lines))


def before_and_after(folder: Path, count: int) -> list[tuple[SampledAnswer, SampledAnswer]]:
    """The first and the last answer to each of up to `count` repeated prompts; answers of RL steps if there is no such
    prompt.
    """
    found = read_samples(folder)
    repeated = [sample for sample in found if sample.split != "rollout"]
    first: dict[str, SampledAnswer] = {}
    last: dict[str, SampledAnswer] = {}
    for sample in repeated:
        first.setdefault(sample.prompt, sample)
        last[sample.prompt] = sample
    if first:
        return [(sample, last[prompt]) for prompt, sample in list(first.items())[:count]]
    return list(zip(found[:count], found[-count:], strict=False))
