"""Greedy answers of a model by ours and by the peers, with the time of each token: one side at a time, in this process
or in one of its own, and gone when it is left."""

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

# ruff: isort: off
# Before torch, which reads what it sets when it is loaded.
from common import THREADS

import torch

# ruff: isort: on
import peers
from quantized import KINDS, quantized_model
from rondo.client.types import GenerateRequest, SamplingParams
from rondo.engine.config import EngineConfig
from rondo.engine.core import EngineCore
from rondo.models import load
from rondo.ops.gemm.linear import cpu_multiplies_bf16

MOST, LONGEST = 64, 2064
"""Requests at once and tokens of each that vLLM is set up for: with other settings it would compile again."""
OURS = {"int8": "int8 by int8", "4-bit": "int4"}
GGUF = {"bf16": "bfloat16", "int8": "q8_0", "4-bit": "q4_0"}


@dataclass(frozen=True)
class Work:
    """What a side does in one turn."""

    folder: Path
    weights: str
    prompts: list[list[int]]
    answer: int

    @property
    def batch(self) -> int:
        return len(self.prompts)

    @property
    def prompt(self) -> int:
        return len(self.prompts[0])

    @property
    def context(self) -> int:
        return self.prompt + self.answer + 16

    @property
    def decodes(self) -> bool:
        return self.answer > 1

    @property
    def figure(self) -> str:
        if self.decodes:
            return f"decode, batch {self.batch}, {self.weights}, tokens/s"
        return f"first token of {self.prompt:,}, {self.weights}, s"


@dataclass(frozen=True)
class Answers:
    tokens: list[list[int]]
    times: list[list[float]]
    """When each of them came, in seconds from the start."""

    def value(self, work: Work) -> float:
        if not work.decodes:
            return self.times[0][0]
        begin, end = max(each[0] for each in self.times), min(each[-1] for each in self.times)
        return sum(begin < at <= end for each in self.times for at in each) / (end - begin)


Generate = Callable[[list[list[int]], int], Answers]
"""Greedy answers to prompts, each of so many tokens."""


@contextmanager
def rondo(work: Work) -> Iterator[Generate]:
    model = load(work.folder)
    if work.weights in OURS:
        model = quantized_model(model, KINDS[OURS[work.weights]], head=True)
    config = EngineConfig(
        max_num_seqs=work.batch, max_model_len=work.context, prefix_cache=False, threads=THREADS
    )
    core = EngineCore(model, config)

    def generate(prompts: list[list[int]], length: int) -> Answers:
        params = SamplingParams(max_tokens=length, temperature=0, ignore_eos=True, detokenize=False)
        times: dict[str, list[float]] = {str(i): [] for i in range(len(prompts))}
        start = time.perf_counter()
        requests = [core.add(GenerateRequest(name, prompts[int(name)], params))[0] for name in times]
        while core.has_work:
            advanced = core.step().advanced
            now = time.perf_counter() - start
            for request in advanced:
                times[request.id].append(now)
        return Answers([each.tokens[each.prompt_length :] for each in requests], list(times.values()))

    yield generate
    core.close()


class Stamps:
    """A streamer of transformers': when each step gave its tokens."""

    def __init__(self) -> None:
        self.start = time.perf_counter()
        self.times: list[float] = []

    def put(self, tokens: torch.Tensor) -> None:
        self.times.append(time.perf_counter() - self.start)

    def end(self) -> None:
        del self.times[0]  # the prompts come first


@contextmanager
def transformers(work: Work) -> Iterator[Generate]:
    try:
        import transformers
    except ImportError:
        raise peers.Absent("transformers is not installed: make lint") from None
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    model: Any = transformers.AutoModelForCausalLM.from_pretrained(work.folder, dtype=library_dtype())
    model.generation_config.eos_token_id = None  # answers go on to their full length

    def generate(prompts: list[list[int]], length: int) -> Answers:
        ids, stamps = torch.tensor(prompts), Stamps()
        with torch.inference_mode():
            out = model.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                do_sample=False,
                max_new_tokens=length,
                pad_token_id=0,
                streamer=stamps,
            )
        return Answers(out[:, ids.shape[1] :].tolist(), [stamps.times] * len(prompts))

    yield generate


def library_dtype() -> str:
    """In which torch computes with the weights, outside of our kernels."""
    return "bfloat16" if cpu_multiplies_bf16() else "float32"


@contextmanager
def llama_cpp(work: Work) -> Iterator[Generate]:
    settings = {
        "file": str(peers.gguf(work.folder, GGUF[work.weights])),
        "sequences": work.batch,
        "context": work.context,
        "threads": THREADS,
        "exact": False,
    }
    with peers.Peer("llama", "_llama_cpp.py", settings) as peer:
        yield asked(peer, samples=1, temperature=0)


@contextmanager
def vllm(work: Work) -> Iterator[Generate]:
    """Compiled, as is its default, once for all work: the settings are the same."""
    settings = {
        "model": str(work.folder),
        "dtype": library_dtype(),
        "max_model_len": max(work.context, min(LONGEST, load(work.folder).config.max_positions)),
        "max_num_seqs": max(work.batch, MOST),
        "enable_prefix_caching": False,
    }
    environment = peers.vllm_environment() | {"VLLM_CPU_KVCACHE_SPACE": "4"}
    with peers.Peer("vllm", "_vllm.py", settings, **environment) as peer:
        yield asked(peer, steps=True)


def asked(peer: peers.Peer, **settings: Any) -> Generate:
    def generate(prompts: list[list[int]], length: int) -> Answers:
        answer = peer.ask(prompts=prompts, lengths=[length] * len(prompts), **settings)
        return Answers(answer["answers"], answer["times"])

    return generate


SIDES: dict[str, Callable[[Work], AbstractContextManager[Generate]]] = {
    "rondo": rondo,
    "vllm": vllm,
    "llama.cpp": llama_cpp,
    "transformers": transformers,
}
QUANTIZED = ("rondo", "llama.cpp")


def turn(side: str, work: Work) -> Answers:
    """From the start of a side to its end."""
    with SIDES[side](work) as generate:
        generate([prompt[:16] if work.decodes else prompt for prompt in work.prompts], min(work.answer, 4))
        answers = generate(work.prompts, work.answer)
    assert [len(each) for each in answers.tokens] == [work.answer] * work.batch
    assert [len(each) for each in answers.times] == [work.answer] * work.batch
    return answers
