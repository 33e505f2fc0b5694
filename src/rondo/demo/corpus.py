"""Pretraining corpus of the demo: stories from a small grammar of subjects, verbs, objects, places and times, and
sums.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterable, Mapping

from rondo.rl.tasks.puzzles import evaluate
from rondo.rl.tasks.registry import Task

_WHO = [
    "the cat",
    "a dog",
    "the old man",
    "my sister",
    "a small bird",
    "the king",
    "her friend",
    "the farmer",
    "our teacher",
    "a child",
    "the fox",
]
_DID = [
    "saw",
    "found",
    "wanted",
    "liked",
    "took",
    "lost",
    "made",
    "painted",
    "carried",
    "forgot",
    "bought",
    "sold",
    "followed",
    "remembered",
]
_WHAT = [
    "a red apple",
    "the long road",
    "some bread",
    "a new hat",
    "the little boat",
    "an open door",
    "a warm coat",
    "the last letter",
    "two stones",
    "a song",
]
_WHERE = [
    "in the garden",
    "near the river",
    "at home",
    "on the hill",
    "by the sea",
    "under a tree",
    "behind the house",
    "in the city",
]
_WHEN = [
    "in the morning",
    "at night",
    "after the rain",
    "last summer",
    "every day",
    "before dinner",
    "one day",
    "when it was cold",
]
_AND = ["and then", "but", "so", "because", "while", "until"]
_FELT = [
    "was happy",
    "was tired",
    "laughed",
    "went to sleep",
    "ran away",
    "said nothing",
    "smiled",
    "waited",
    "began to sing",
]


def sentence(source: random.Random) -> str:
    clause = f"{source.choice(_WHO)} {source.choice(_DID)} {source.choice(_WHAT)}"
    if source.random() < 0.6:
        clause += f" {source.choice(_WHERE)}"
    if source.random() < 0.5:
        clause = f"{source.choice(_WHEN)} {clause}"
    if source.random() < 0.4:
        clause += f" {source.choice(_AND)} {source.choice(_WHO)} {source.choice(_FELT)}"
    return clause[0].upper() + clause[1:] + "."


def story(source: random.Random) -> str:
    return " ".join(sentence(source) for _ in range(source.randint(3, 6)))


def stories(seed: int, n: int) -> list[dict[str, str]]:
    source = random.Random(f"stories:{seed}")
    return [{"text": story(source)} for _ in range(n)]


SUMS_IN_TEXT = 12


def sums(seed: int, n: int) -> list[dict[str, str]]:
    """Texts of lines such as 7*3=21 with one-digit operands, as background knowledge for arithmetic tasks."""
    source = random.Random(f"sums:{seed}")
    return [{"text": "\n".join(_sum(source) for _ in range(SUMS_IN_TEXT))} for _ in range(n)]


def _sum(source: random.Random) -> str:
    digits, operation = source.choices(range(10), k=2), source.choice("+-*")
    a, b = sorted(digits, reverse=True) if operation == "-" else digits
    text = f"{a}{operation}{b}"
    return f"{text}={evaluate(text)[0]}"


def solved(task: Task, seed: int, n: int) -> list[dict[str, list[dict[str, str]]]]:
    """The task's problems with their reference solutions, as conversations."""
    return [
        {"messages": [*problem.messages, {"role": "assistant", "content": task.solve(problem.facts)}]}
        for problem in task.prompts(seed, n)
    ]


def json_lines(records: Iterable[Mapping[str, object]]) -> str:
    return "".join(json.dumps(record) + "\n" for record in records)
