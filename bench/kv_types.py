"""The KV cache by type: bytes a token, and the time of a decode step over long contexts beside what memory allows.

Every type serves the same model (fp32 weights), the same tokens and the same contexts, whose keys and values are random
and in place before the clock starts. A step is the whole model's: one token of every request. The limit is the bytes of
keys and values that a step has to read, over the bandwidth with which the same threads sum a large tensor.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from common import THREADS, Report, alternate, arguments, median, say, seconds
from rondo.engine.kv.cache import KV_DTYPES, KVCache, block_bytes
from rondo.engine.runner.attend import Paged, StepLayout
from rondo.models import Decoder, new
from rondo.ops import DecodeStep
from small_model import SHAPE

BLOCK = 16


@dataclass(frozen=True)
class Case:
    name: str
    shape: dict[str, Any]
    requests: int
    context: int


WIDE = {"hidden_size": 512, "num_hidden_layers": 4, "head_dim": 128}
CASES = [
    Case("4M, 64 x 2,000", {}, 64, 2000),
    Case("heads of 128, 32 x 2,000", WIDE, 32, 2000),
    Case("heads of 128, 1 x 8,000", WIDE, 1, 8000),
]
QUICK = [Case("4M, 8 x 500", {}, 8, 500), Case("heads of 128, 1 x 1,000", WIDE, 1, 1000)]


def model_of(case: Case) -> Decoder:
    length = {"max_position_embeddings": case.context + 1, "vocab_size": 512}
    return new(SHAPE | case.shape | length, seed=0).eval()


def filled(model: Decoder, case: Case, dtype: torch.dtype) -> KVCache:
    blocks = case.requests * -(-case.context // BLOCK)
    cache = KVCache(model.attention_specs(), [blocks], BLOCK, dtype, torch.device("cpu"))
    slots, kv, dim = torch.arange(blocks * BLOCK), model.attention_specs()[0].num_kv_heads, 0
    rows = torch.empty(0)
    for layer in cache.layers:
        for pages in (layer.keys, layer.values):
            if dim != pages.data.shape[-1]:
                dim = pages.data.shape[-1]
                rows = torch.randn(len(slots), kv, dim, generator=torch.Generator().manual_seed(0))
            pages.write(slots, rows)
    return cache


def step_of(model: Decoder, case: Case, cache: KVCache) -> Callable[[], float]:
    """One token of every request at the end of its context; blocks of requests lie mixed, as they come to."""
    order = torch.randperm(cache.num_blocks[0], generator=torch.Generator().manual_seed(0))
    tables = order.view(case.requests, -1)
    lengths = torch.full((case.requests,), case.context)
    slots = tables[:, (case.context - 1) // BLOCK] * BLOCK + (case.context - 1) % BLOCK
    decodes = DecodeStep(tables, lengths, slots, case.context)
    layout = StepLayout(lengths, decodes, slots[:0], [], [])
    tokens = torch.arange(case.requests) % 512

    @torch.inference_mode()
    def step() -> None:
        model(tokens, lengths - 1, Paged(cache, [layout]))

    return lambda: 1e3 * seconds(step)


def bandwidth(quick: bool) -> float:
    """Bytes a second read by one sum over far more than the caches hold."""
    numbers = torch.ones((64 if quick else 512) << 18)
    best = min(seconds(numbers.sum) for _ in range(3 if quick else 7))
    return numbers.numel() * 4 / best


def measure(report: Report, case: Case, quick: bool, rate: float) -> None:
    model = model_of(case)
    specs = model.attention_specs()
    say(f"{case.name}: filling the caches")
    steps = {name: step_of(model, case, filled(model, case, dtype)) for name, dtype in KV_DTYPES.items()}
    for step in steps.values():
        step()
    runs = alternate(3 if quick else 11, **steps)
    for name, dtype in KV_DTYPES.items():
        figure = f"ms a step, {case.name}, {name}"
        token = block_bytes(specs, BLOCK, dtype) / BLOCK
        report.ours[f"bytes a token, {case.name}, {name}"] = token
        report.ours[figure] = median(runs[name])
        report.limit[figure] = 1e3 * token * case.context * case.requests / rate
        report.ratios[f"{case.name}, {name} beside float32"] = median(runs["float32"]) / median(runs[name])


def main() -> None:
    options = arguments(__doc__.splitlines()[0])
    torch.set_num_threads(THREADS)
    report = Report("kv_types")
    rate = bandwidth(options.quick)
    report.limit["how"] = f"bytes of keys and values read in a step, at {rate / 1e9:.1f} GB/s"
    for case in QUICK if options.quick else CASES:
        measure(report, case, options.quick, rate)
    report.notes.append(f"{THREADS} threads; the limit: {report.limit['how']}")
    report.show(options.json)


if __name__ == "__main__":
    main()
