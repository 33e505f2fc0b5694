"""Tokens a second of `rondo data prepare`, beside Hugging Face's tokenizers; the loader's share of a training step.

Both sides read the same JSON Lines file and give the same tokens of each text, which the counts show. The peer keeps
them in memory and drops them, as fast as its `encode_batch` goes with as many threads; ours starts its workers, closes
each document, and writes shards with checksums and an index, all of it in the time.
"""

import json
import os
import random
import subprocess
import sys
import tempfile
from pathlib import Path

from common import Report, alternate, arguments, median, say, seconds
from rondo.data.batching.datasets import Dataset
from rondo.data.batching.loader import Loader
from rondo.data.batching.prefetch import Prefetch
from rondo.data.batching.sampler import Position
from rondo.data.preparation.prepare import PrepareRequest, prepare
from rondo.data.storage.shards import Shards, read_index
from rondo.models import load
from rondo.text.bpe import train_bpe
from rondo.train.config import TrainConfig
from rondo.train.learner.learner import Learner
from rondo.train.loop import train
from small_model import write_small_model

WORKERS = (1, 2)
CONTEXT = 512


def write_text(path: Path, size: int) -> None:
    """English-like: 20,000 words by Zipf's law, in documents of 20 to some thousands of them."""
    rng = random.Random(0)
    letters = "etaoinshrdlucmfwypvbgk"
    words = ["".join(rng.choice(letters) for _ in range(rng.randint(2, 9))) for _ in range(20_000)]
    weights = [1 / (rank + 3) for rank in range(len(words))]
    with path.open("w") as out:
        while out.tell() < size:
            count = max(20, int(rng.lognormvariate(5.5, 1)))
            text = " ".join(rng.choices(words, weights, k=count)).capitalize() + "."
            out.write(json.dumps({"text": text}) + "\n")


def ours(text: Path, tokenizer: Path, out: Path, workers: int) -> float:
    """Tokens a second."""
    request = PrepareRequest(
        [str(text)], tokenizer, str(out), workers=workers, part_bytes=4 << 20, replace=True
    )
    for left in out.glob("*"):
        left.unlink()
    took = seconds(lambda: prepare(request))
    return read_index(str(out)).tokens / took


def theirs(text: Path, tokenizer: Path, threads: int, expected: int) -> float:
    environment = {**os.environ, "RAYON_NUM_THREADS": str(threads), "TOKENIZERS_PARALLELISM": "true"}
    command = [
        sys.executable,
        str(Path(__file__).with_name("_tokenizers.py")),
        str(tokenizer / "tokenizer.json"),
        str(text),
    ]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    tokens, took = done.stdout.split()
    assert int(tokens) == expected, f"{tokens} tokens, and ours made {expected}"
    return int(tokens) / float(took)


def loader(dataset: Dataset, tokens_per_step: int) -> Loader:
    return Loader(
        [dataset], seed=0, tokens_per_step=tokens_per_step, tokens_per_microbatch=4096, longest=CONTEXT
    )


def loader_alone(dataset: Dataset, steps: int) -> tuple[float, float]:
    """(tokens a second, the share of the steps that is left empty)"""
    load, position, unfilled = loader(dataset, 16384), Position(), 0.0
    load(position)

    def run() -> None:
        nonlocal position, unfilled
        for _ in range(steps):
            batch = load(position)
            position, unfilled = batch.position, unfilled + batch.unfilled

    took = seconds(run)
    return steps * 16384 / took, unfilled / steps


def share_of_a_step(dataset: Dataset, folder: Path, steps: int, depth: int) -> float:
    config = TrainConfig(steps=steps, tokens_per_step=2048, tokens_per_microbatch=2048, max_length=CONTEXT)
    shares: list[float] = []
    with Prefetch(loader(dataset, config.tokens_per_step), depth) as fetched:
        learner = Learner(load(folder), config)
        train(learner, fetched, config, on_step=lambda step, metrics: shares.append(metrics["loader_share"]))
    return median(shares[1:])


def main() -> None:
    options = arguments(__doc__, tokenizers="Hugging Face's tokenizers, encode_batch")
    size, rounds, steps = (1 << 20, 1, 3) if options.quick else (24 << 20, 3, 12)
    report = Report("data")
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        os.environ["RONDO_HOME"] = str(root / "home")
        text, tokenizer, out = root / "text.jsonl", root / "tokenizer", root / "out"
        write_text(text, size)
        with text.open() as lines:
            sample = [json.loads(line)["text"] for _, line in zip(range(1500), lines, strict=False)]
        tokenizer.mkdir()
        train_bpe(sample, 8192).save(tokenizer)
        prepare(PrepareRequest([str(text)], tokenizer, str(out)))
        index = read_index(str(out))
        say(f"{index.documents:,} documents, {index.tokens:,} tokens")
        unclosed = index.tokens - index.documents  # the peer closes no document
        sides = {}
        for count in WORKERS:
            sides[f"ours {count}"] = lambda count=count: ours(text, tokenizer, root / "timed", count)
            if "tokenizers" in options.peers:
                sides[f"peer {count}"] = lambda count=count: theirs(text, tokenizer, count, unclosed)
        found = {side: median(values) for side, values in alternate(rounds, **sides).items()}
        for count in WORKERS:
            figure = f"tokens/s, {count} worker{'s' * (count > 1)}"
            report.ours[figure] = found[f"ours {count}"]
            if f"peer {count}" in found:
                report.peers.setdefault("tokenizers", {})[figure] = found[f"peer {count}"]
                report.ratios[figure] = found[f"ours {count}"] / found[f"peer {count}"]
        shards = Shards(str(out), index)
        report.ours["loader alone, tokens/s"], unfilled = loader_alone(shards, steps * 5)
        report.ours["left empty of a step of 16,384 tokens, %"] = 100 * unfilled
        folder = root / "model"
        write_small_model(folder)
        prepare(PrepareRequest([str(text)], folder, str(root / "small")))
        small = Shards(str(root / "small"), read_index(str(root / "small")))
        for depth, what in ((2, "prefetched"), (0, "not prefetched")):
            share = share_of_a_step(small, folder, steps, depth)
            report.ours[f"loader's share of a step, {what}, %"] = 100 * share
    report.limit = {
        "loader's share of a step, prefetched, %": 1.0,
        "how": "the goal; a model of 4M parameters, 2,048 tokens a step",
    }
    report.show(options.json)


if __name__ == "__main__":
    main()
