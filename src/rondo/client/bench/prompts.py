"""Prompts of a benchmark: random tokens, conversations or lines of a file, or prompts with shared prefixes.
No tokenizer is needed: the server reports the number of prompt tokens."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rondo.base.errors import ConfigError

TOKENS = range(10, 250)
"""Ids that every vocabulary has; 240 of them make prompts that share no beginning."""
LETTERS = "abcdefghijklmnopqrstuvwxyz"
CHARACTERS_A_TOKEN = 4

Prompt = str | list[int]


@dataclass(frozen=True)
class Ask:
    """One request: token ids, a text or messages, and the number of output tokens."""

    prompt: Prompt | list[dict[str, Any]]
    max_tokens: int


@dataclass(frozen=True)
class LengthDistribution:
    """How long random prompts and answers are: `ratio` spreads each evenly by so much around its length."""

    input: int = 1024
    output: int = 128
    ratio: float = 0.0
    prefix: int = 0

    def draw(self, rng: random.Random) -> tuple[int, int]:
        return self._around(self.input, rng), self._around(self.output, rng)

    def _around(self, length: int, rng: random.Random) -> int:
        return max(1, rng.randint(int(length * (1 - self.ratio)), int(length * (1 + self.ratio))))


@dataclass(frozen=True)
class Repeated:
    """Prompts of `prefixes` families that begin alike."""

    prefix: int = 256
    suffix: int = 256
    prefixes: int = 10
    output: int = 128


@dataclass(frozen=True)
class LinePrompts:
    """Prompts of a text's lines, the first ones the same in all: about as many tokens as this, by their characters."""

    input: int = 550
    output: int = 150
    prefix: int = 200


@dataclass(frozen=True)
class PromptDataset:
    kind: str
    path: Path | None = None
    lengths: LengthDistribution = field(default_factory=LengthDistribution)
    repeated: Repeated = field(default_factory=Repeated)
    lines: LinePrompts = field(default_factory=LinePrompts)
    output: int | None = None
    """Number of output tokens for prompts of a file; None: as in the file."""


def make_prompts(dataset: PromptDataset, count: int, chat: bool, seed: int) -> list[Ask]:
    rng = random.Random(seed)
    makers: dict[str, Callable[[], list[Ask]]] = {
        "random": lambda: _random(dataset.lengths, count, chat, rng),
        "prefix_repetition": lambda: _repeated(dataset.repeated, count, chat, rng),
        "sonnet": lambda: _sonnet(_file(dataset), dataset.lines, count, rng),
        "sharegpt": lambda: _sharegpt(_file(dataset), dataset.output, count, rng),
        "custom": lambda: _custom(_file(dataset), dataset.output, count, chat),
    }
    if dataset.kind not in makers:
        known = ", ".join(makers)
        raise ConfigError(f"There is no dataset {dataset.kind!r}; there are: {known}.", param="dataset")
    return makers[dataset.kind]()


def _random(lengths: LengthDistribution, count: int, chat: bool, rng: random.Random) -> list[Ask]:
    beginning = _tokens(lengths.prefix, rng)
    asked = []
    for _ in range(count):
        size, output = lengths.draw(rng)
        asked.append(Ask(_shown(beginning + _tokens(size, rng), chat), output))
    return asked


def _repeated(repeated: Repeated, count: int, chat: bool, rng: random.Random) -> list[Ask]:
    if count < repeated.prefixes:
        raise ConfigError(
            f"{repeated.prefixes} prefixes need at least as many prompts, but there are {count}.",
            param="num_prompts",
        )
    beginnings = [_tokens(repeated.prefix, rng) for _ in range(repeated.prefixes)]
    asked = [
        Ask(_shown(beginnings[i % repeated.prefixes] + _tokens(repeated.suffix, rng), chat), repeated.output)
        for i in range(count)
    ]
    rng.shuffle(asked)
    return asked


def _tokens(count: int, rng: random.Random) -> list[int]:
    return rng.choices(TOKENS, k=count)


def _shown(ids: list[int], chat: bool) -> Prompt:
    """A chat has text: one letter a token, which is about one token of any vocabulary."""
    return " ".join(LETTERS[token % len(LETTERS)] for token in ids) if chat else ids


def _file(dataset: PromptDataset) -> Path:
    if dataset.path is None:
        raise ConfigError(
            f"The dataset {dataset.kind} needs a file: --dataset-path FILE.", param="dataset_path"
        )
    return dataset.path


def _read(path: Path) -> str:
    try:
        return path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} cannot be read: {error}.", param="dataset_path") from None


def _sharegpt(path: Path, output: int | None, count: int, rng: random.Random) -> list[Ask]:
    """The first question of conversations of at least two turns; the answer's length is guessed from its text."""
    try:
        conversations = [each["conversations"] for each in json.loads(_read(path))]
        pairs = [(turns[0]["value"], turns[1]["value"]) for turns in conversations if len(turns) >= 2]
    except (ValueError, KeyError, TypeError) as error:
        raise ConfigError(
            f'{path} is not ShareGPT\'s JSON, a list of {{"conversations": [{{"value": ...}}]}}: {error!r}.',
            param="dataset_path",
        ) from None
    rng.shuffle(pairs)
    asked = [
        Ask(question, output or max(4, len(answer) // CHARACTERS_A_TOKEN))
        for question, answer in pairs
        if question
    ]
    return _enough(asked, count, path)


def _custom(path: Path, output: int | None, count: int, chat: bool) -> list[Ask]:
    """JSON lines: `{"prompt": text or ids}` or `{"messages": [...]}`, with `output_tokens` where they differ."""
    asked = []
    for number, line in enumerate(_read(path).splitlines(), start=1):
        if not line.strip():
            continue
        try:
            record = json.loads(line)
            prompt = record["messages"] if "messages" in record else record["prompt"]
            length = int(output or record.get("output_tokens", 256))
        except (ValueError, KeyError, TypeError):
            raise ConfigError(
                f'{path}, line {number}: it must be {{"prompt": ...}} or {{"messages": [...]}}.',
                param="dataset_path",
            ) from None
        if "messages" in record and not chat:
            raise ConfigError(f"{path}, line {number}: messages need --endpoint chat.", param="endpoint")
        asked.append(Ask(prompt, length))
    return _enough(asked, count, path)


def _sonnet(path: Path, lengths: LinePrompts, count: int, rng: random.Random) -> list[Ask]:
    """Lines of any text, drawn for each prompt after the shared first lines."""
    known = [line for line in _read(path).splitlines() if line.strip()]
    if not known:
        raise ConfigError(f"{path} has no lines.", param="dataset_path")
    common = _text(known, lengths.prefix, rng)
    own = max(0, lengths.input - lengths.prefix)
    return [Ask(common + _text(known, own, rng), lengths.output) for _ in range(count)]


def _text(known: Sequence[str], tokens: int, rng: random.Random) -> str:
    text = ""
    while len(text) < tokens * CHARACTERS_A_TOKEN:
        text += rng.choice(known) + "\n"
    return text


def _enough(asked: Sequence[Ask], count: int, path: Path) -> list[Ask]:
    """`count` of them, from the beginning again where there are fewer."""
    if not asked:
        raise ConfigError(f"{path} has no prompts.", param="dataset_path")
    return list(_take(asked, count))


def _take(asked: Sequence[Ask], count: int) -> Iterable[Ask]:
    return (asked[i % len(asked)] for i in range(count))
