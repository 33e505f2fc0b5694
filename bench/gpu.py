"""On a GPU: decode rate of 1 and 64 requests with CUDA graphs and without, and the first token of a long prompt.

The model has Qwen3 0.6B's shape and random weights in bf16; requests have 128 tokens and give 128 greedy ones. The
decode rate is of decoding alone: tokens over time from when all have their first token. The limit is the time in which
a step's bytes are read (all weights once, and the keys and values) at the rate at which this card copies, or its
products are computed at the rate of one large product, whichever is longer; both are measured first. Without a GPU
nothing is measured.
"""

import time
from collections.abc import Callable

import torch
from torch import Tensor

from common import Report, arguments, median
from rondo import models
from rondo.client.types import GenerateRequest, SamplingParams
from rondo.engine.config import EngineConfig
from rondo.engine.core import EngineCore
from rondo.engine.kv.cache import block_bytes
from rondo.models import Decoder
from small_model import QWEN3_06B, SHAPE

BATCHES = (1, 64)
TOKENS, LONG = 128, 2048
RUNS = 3


def seconds(action: Callable[[], object], runs: int = 20) -> float:
    """Of a call, on the device."""
    action()
    torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(runs):
        action()
    torch.cuda.synchronize()
    return (time.perf_counter() - start) / runs


def copied(size: int) -> float:
    """Bytes a second, read and written."""
    a = torch.ones(size, dtype=torch.uint8, device="cuda")
    b = torch.empty_like(a)
    return 2 * size / seconds(lambda: b.copy_(a))


def multiplied(size: int) -> float:
    """Operations a second of a product in bf16."""
    a = torch.randn(size, size, device="cuda").bfloat16()
    return 2 * size**3 / seconds(lambda: a @ a)


def answer_times(core: EngineCore, prompts: list[list[int]], length: int) -> list[float]:
    """When each step brought tokens, from the start."""
    params = SamplingParams(max_tokens=length, temperature=0, ignore_eos=True, detokenize=False)
    start, times = time.perf_counter(), []
    for i, prompt in enumerate(prompts):
        core.add(GenerateRequest(str(i), prompt, params))
    while core.has_work:
        advanced = core.step().advanced
        times += [time.perf_counter() - start] * len(advanced)
    return times


def decode_rate(core: EngineCore, batch: int, length: int) -> float:
    prompts = torch.randint(1000, (batch, length)).tolist()
    answer_times(core, prompts, 8)  # kernels are compiled, graphs recorded
    rates = []
    for _ in range(RUNS):
        times = answer_times(core, prompts, length)
        first, last = times[batch - 1], times[-1]
        rates.append((len(times) - batch) / (last - first))
    return median(rates)


def engine(model: Decoder, graphs: bool, batch: int, longest: int) -> EngineCore:
    settings = {"max_num_seqs": batch, "max_model_len": longest, "prefix_cache": False}
    return EngineCore(model, EngineConfig(**settings, cuda_graphs=graphs, device="cuda"))


def numbers(tensors: list[Tensor]) -> int:
    return sum(tensor.numel() for tensor in tensors)


def main() -> None:
    options = arguments(__doc__.partition("\n")[0])
    if not torch.cuda.is_available():
        print("There is no CUDA device here, so nothing is measured: run this where torch sees one.")
        return
    shape = SHAPE | {"vocab_size": 2048, "eos_token_id": 0} | ({} if options.quick else QWEN3_06B)
    length, long = (16, 64) if options.quick else (TOKENS, LONG)
    model = models.new(shape, seed=0).bfloat16().cuda().eval()
    scale = 4 if options.quick else 1
    copies, products = copied((1 << 30) // scale), multiplied(8192 // scale)
    report = Report("gpu")
    report.columns["without graphs"] = {}
    weights = numbers(list(model.parameters()))
    row = block_bytes(model.attention_specs(), 1, torch.bfloat16)
    for batch in BATCHES:
        figure = f"decode, batch {batch}, tokens/s"
        for graphs in (False, True):
            core = engine(model, graphs, batch, 2 * length + 16)
            rate = decode_rate(core, batch, length)
            (report.ours if graphs else report.columns["without graphs"])[figure] = rate
            core.close()
        step = max((2 * weights + batch * row * 1.5 * length) / copies, 2 * weights * batch / products)
        report.limit[figure] = batch / step
        report.ratios[f"{figure}, of the limit"] = report.ours[figure] * step / batch
    core = engine(model, False, 1, long + 16)
    prompt = torch.randint(1000, (1, long)).tolist()
    answer_times(core, prompt, 1)
    figure = f"prefill, {long} tokens, tokens/s"
    report.ours[figure] = long / median([answer_times(core, prompt, 1)[0] for _ in range(RUNS)])
    core.close()
    # The head multiplies one row; attention is left out.
    inner = weights - numbers([model.embed.weight])
    report.limit[figure] = products / (2 * inner)
    report.ratios[f"{figure}, of the limit"] = report.ours[figure] * 2 * inner / products
    report.notes.append(f"{torch.cuda.get_device_name()}: copies {copies / 1e9:.0f} GB/s")
    report.notes.append(f"products in bf16 {products / 1e12:.0f} Tflop/s")
    report.show(options.json)


if __name__ == "__main__":
    main()
