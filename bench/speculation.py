"""Speculative decoding: tokens a second with it, beside the same engine without it.

Both sides generate the same answers from the same weights. The script counts those that differ, and stops if more
than one in fifty does: where a random number falls on the border of two tokens, the rounding of a product over more
rows can tip it, as it can when a request has other neighbours. The models have 6M parameters and are made, not
trained: each token has a successor that it says with about 99%, the rest is noise. Where successors form rings of 12
tokens the text repeats; where they form one ring of the whole vocabulary it does not, and where every token is about
as likely as any other of 32 it seems to repeat all the time and does not. The draft is a smaller model with the same
successors, or one with others, which is wrong about everything.
"""

import os
import random
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from common import THREADS, Report, alternate, arguments, median
from rondo.client.types import SamplingParams
from rondo.engine.config import EngineConfig
from rondo.engine.entrypoints.llm import LLM
from rondo.models import Decoder, new, save
from small_model import SHAPE

VOCAB, RING, SMALL_VOCAB = 4080, 12, 32
CERTAINTY = 14.0
"""The successor's logit over the mean of the others."""
SMALL = {
    "hidden_size": 64,
    "intermediate_size": 192,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
}
PROMPT = 48


def ring_model(ring: int, seed: int = 0, **changes: Any) -> Decoder:
    """Each token's successor is the next of its ring: the head's row of the one is the embedding of the other."""
    model = new(SHAPE | {"vocab_size": VOCAB, "tie_word_embeddings": False} | changes, seed=seed).eval()
    order = torch.randperm(VOCAB, generator=torch.Generator().manual_seed(seed))
    successor = torch.empty(VOCAB, dtype=torch.int64)
    rings = order.view(-1, ring)
    successor[rings] = rings.roll(-1, dims=1)
    with torch.no_grad():
        embedding = model.embed.weight.normal_()
        hidden = embedding.shape[1]
        model.head.out.weight[successor] = CERTAINTY / hidden * embedding
    return model


def babbler() -> Decoder:
    return new(SHAPE | {"vocab_size": SMALL_VOCAB}, seed=0).eval()


def engine(model: Decoder, **config: Any) -> LLM:
    return LLM(model, config=EngineConfig(max_num_seqs=16, prefix_cache=False, threads=THREADS, **config))


Side = Callable[[int], tuple[float, list[list[int]]]]


def side(llm: LLM, requests: int, length: int) -> Side:
    """Round -> (tokens a second, the answers)."""
    vocab = llm.core.model.config.vocab_size

    def generate(turn: int) -> tuple[float, list[list[int]]]:
        rng = random.Random(turn)
        prompts = [[rng.randrange(3, vocab) for _ in range(PROMPT)] for _ in range(requests)]
        params = [
            SamplingParams(max_tokens=length, seed=turn * requests + i, ignore_eos=True, detokenize=False)
            for i in range(requests)
        ]
        start = time.perf_counter()
        outputs = llm.generate(prompts, params)
        seconds = time.perf_counter() - start
        return requests * length / seconds, [output.outputs[0].token_ids for output in outputs]

    return generate


def measure(report: Report, name: str, plain: LLM, speculating: LLM, requests: int, quick: bool) -> None:
    length, rounds = (32, 1) if quick else (300, 9)
    sides = {"ours": side(speculating, requests, length), "without": side(plain, requests, length)}
    turns: dict[str, int] = dict.fromkeys(sides, 0)
    answers: dict[str, list[list[int]]] = {}
    same: list[bool] = []

    def run(which: str) -> float:
        turns[which] += 1
        rate, answers[which] = sides[which](turns[which])
        if which == "without":
            same.extend(a == b for a, b in zip(answers["ours"], answers["without"], strict=True))
        return rate

    for which in sides:
        run(which)
    runs = alternate(rounds, **{which: (lambda which=which: run(which)) for which in sides})
    assert same.count(False) <= 1 + len(same) // 50, (
        f"{name}: {same.count(False)} of {len(same)} answers differ"
    )
    report.ours[name] = median(runs["ours"])
    report.peers.setdefault("without", {})[name] = median(runs["without"])
    report.ratios[name] = median([a / b for a, b in zip(runs["ours"], runs["without"], strict=True)])
    counters = speculating.core.speculation.counters
    share = counters.accepted / max(counters.proposed, 1)
    report.notes.append(
        f"{name}: {share:.0%} of {counters.proposed} proposed tokens accepted, "
        f"{same.count(True)} of {len(same)} answers the same"
    )


def main() -> None:
    options = arguments(__doc__.splitlines()[0])
    torch.set_num_threads(THREADS)
    report = Report("speculation")
    repeating, endless = ring_model(RING), ring_model(VOCAB)
    with tempfile.TemporaryDirectory() as root:
        alike, stranger = Path(root) / "alike", Path(root) / "stranger"
        save(ring_model(VOCAB, **SMALL), alike)
        save(ring_model(VOCAB, seed=1, **SMALL), stranger)
        ngram = {"speculation": "ngram"}
        for name, model, config, requests in (
            ("repeating, n-gram, 1 request", repeating, ngram, 1),
            ("repeating, n-gram, 8 requests", repeating, ngram, 8),
            ("no repeats, n-gram, 1 request", endless, ngram, 1),
            ("no repeats, n-gram, 8 requests", endless, ngram, 8),
            ("false repeats, n-gram, 1 request", babbler(), ngram, 1),
            ("false repeats, n-gram, 8 requests", babbler(), ngram, 8),
            ("draft that agrees, 1 request", endless, {"speculation": "draft", "draft_model": str(alike)}, 1),
            (
                "draft that is wrong, 1 request",
                endless,
                {"speculation": "draft", "draft_model": str(stranger)},
                1,
            ),
        ):
            measure(report, name, engine(model), engine(model, **config), requests, options.quick)
    report.notes.append(f"{THREADS} threads, load average {os.getloadavg()[0]:.1f}")
    report.show(options.json)


if __name__ == "__main__":
    main()
