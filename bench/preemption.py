"""Preemption: what it takes a request to go on, by swapping its KV blocks to host memory or by computing them again.

At each context length two requests fill the KV cache to the last block. The second gives way, the first is taken out,
and the clock stops when the second has its next token: moving its blocks out and back is in that time, or computing
them again; the one step of the first that lies between is the same for both. There is no prefix cache that could help
either side. Both ways give the same tokens, or the script stops. A third engine measures its rates when it starts, as
users' engines do, and decides by itself: `picked` is 1 where it took the faster way. The 4M-parameter model, fp32, on
the GPU if there is one.

Where a move costs next to nothing, as on a CPU, whose host memory is its own, swapping is faster at any length. So that
the other side of the choice is measured too, the same is done with a link before the host memory: every move of blocks
first waits as long as computing half of TURN tokens takes. The engine measures that like any other memory. Then
computing again is faster for contexts that are shorter than about TURN tokens, and swapping for longer ones.

KV waste is the share of slots in allocated blocks that hold nothing, over all steps of a batch of mixed lengths. It is
a matter of the scheduler alone, so no model runs for it.
"""

import os
import random
import time
from dataclasses import dataclass
from unittest import mock

import torch

from common import THREADS, Report, alternate, arguments, median, say
from rondo.client.types import GenerateRequest, SamplingParams
from rondo.engine.config import EngineConfig
from rondo.engine.core import EngineCore
from rondo.engine.kv.blocks import BlockPool
from rondo.engine.kv.cache import block_bytes
from rondo.engine.kv.groups import GroupedPool, Pairs
from rondo.engine.kv.host import HostCache
from rondo.engine.kv.swap import Cost
from rondo.engine.schedule.request import Request
from rondo.engine.schedule.scheduler import Scheduler
from rondo.models import Decoder, new
from rondo.models.devices import device_named
from small_model import SHAPE

SIZE = 16
TURN = 256
FREE = 1e18
"""A rate at which everything is done at once: it forces the decision."""
WAYS = {
    "swap": {"swap_bytes_per_second": FREE, "recompute_tokens_per_second": 1e-6},
    "recompute": {"swap_bytes_per_second": 1e-6, "recompute_tokens_per_second": FREE},
    "decides": {},
}


@dataclass(frozen=True)
class Return:
    seconds: float
    swapped: bool
    tokens: tuple[int, ...]


def core_for(model: Decoder, context: int, way: str) -> EngineCore:
    blocks = 2 * (context // SIZE) + 1
    block = sum(2 * spec.num_kv_heads * spec.head_dim for spec in model.attention_specs()) * SIZE * 4
    config = EngineConfig(
        block_size=SIZE,
        num_blocks=blocks,
        max_model_len=context + SIZE,
        max_num_seqs=2,
        max_step_tokens=max(2048, 2 * context),
        prefix_cache=False,
        swap_bytes=blocks * block,
        threads=THREADS,
        **WAYS[way],
    )
    return EngineCore(model, config)


def linked(latency: float) -> type[HostCache]:
    """Host memory behind a link."""

    class Linked(HostCache):
        def store(self, pairs: Pairs) -> None:
            time.sleep(latency)
            super().store(pairs)

        def load(self, pairs: Pairs) -> None:
            time.sleep(latency)
            super().load(pairs)

    return Linked


def turn(model: Decoder, cost: Cost, longest: int) -> int | None:
    """The shortest context, in whole blocks, for which the engine's own account says to swap."""
    sizes = ((n, bytes_of(model, n)) for n in range(SIZE, longest + 1, SIZE))
    return next((n for n, size in sizes if cost.swap_pays(size, size, 0, n)), None)


def bytes_of(model: Decoder, context: int) -> int:
    """The blocks of a context."""
    return -(-context // SIZE) * block_bytes(model.attention_specs(), SIZE, model.dtype)


def come_back(core: EngineCore, context: int) -> Return:
    """Both prompts end one token before a block does, so that the second token of each needs another block, of which
    there is one."""
    rng = random.Random(0)
    params = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True, detokenize=False)
    prompts = [[rng.randrange(3, 300) for _ in range(context - 1)] for _ in range(2)]
    core.add(GenerateRequest("first", prompts[0], params))
    (second,) = core.add(GenerateRequest("second", prompts[1], params))
    while second.preemptions == 0:
        start = time.perf_counter()
        core.step()
    swapped, before = bool(second.host), second.generated
    core.abort("first")
    while second.generated == before:
        core.step()
    seconds = time.perf_counter() - start
    while core.has_work:
        core.step()
    return Return(seconds, swapped, tuple(second.tokens[context - 1 :]))


def measure(report: Report, model: Decoder, context: int, runs: int, where: str = "") -> Cost:
    """`where` goes into the figures' names. The rates that the engine measured."""
    name = f"{context} tokens{where}"
    say(name)
    cores = {way: core_for(model, context, way) for way in WAYS}
    cost = cores["decides"].scheduler.swap.cost
    returns: dict[str, list[Return]] = {way: [] for way in WAYS}

    def once(way: str) -> float:
        returns[way].append(come_back(cores[way], context))
        return returns[way][-1].seconds

    for way in WAYS:
        come_back(cores[way], context)
    times = alternate(runs, **{way: (lambda way=way: once(way)) for way in WAYS})
    assert len({r.tokens for rs in returns.values() for r in rs}) == 1, "the ways give different tokens"
    assert all(r.swapped == (way == "swap") for way in ("swap", "recompute") for r in returns[way])
    swap, recompute = (median(times[way]) for way in ("swap", "recompute"))
    chosen = "swap" if returns["decides"][0].swapped else "recompute"
    faster = "swap" if swap < recompute else "recompute"
    report.ours |= {
        f"ms until it goes on, swapped, {name}": 1e3 * swap,
        f"ms until it goes on, recomputed, {name}": 1e3 * recompute,
        f"picked the faster, {name}": float(chosen == faster),
    }
    report.ratios[f"recompute / swap, {name}"] = recompute / swap
    moving, computing = (
        2e3 * cost.move_seconds(bytes_of(model, context)),
        1e3 * cost.compute_seconds(0, context),
    )
    report.notes.append(
        f"{name}: the engine chose to {chosen}; it expected {moving:.2f} ms for moving both ways, "
        f"{computing:.2f} ms for computing"
    )
    return cost


def measure_link(report: Report, model: Decoder, rates: Cost, contexts: tuple[int, int], runs: int) -> None:
    """`rates` are those without a link."""
    latency = rates.compute_seconds(0, TURN) / 2 - rates.move_seconds(bytes_of(model, TURN))
    with mock.patch("rondo.engine.kv.host.HostCache", linked(latency)):
        for context in contexts:
            anew = measure(report, model, context, runs, ", behind a link")
    report.notes.append(
        f"the link takes {1e3 * latency:.1f} ms for every move; with it the choice turns at "
        f"{turn(model, anew, 8192)} tokens"
    )


def waste(requests: int) -> float:
    """Prompts of 16 to 1,024 tokens and answers of 16 to 512, more short than long, 64 at once."""
    rng = random.Random(0)
    scheduler = Scheduler(GroupedPool([BlockPool(8192, SIZE, prefix_cache=False)]), 64, 2048, requests)
    for arrival in range(requests):
        prompt, answer = (int(16 * 2 ** rng.uniform(0, most)) for most in (6, 5))
        tokens = [rng.randrange(1000) for _ in range(prompt)]
        scheduler.add(Request(str(arrival), 0, tokens, SamplingParams(), prompt + answer, arrival))
    allocated = filled = 0
    while scheduler.has_work:
        plan = scheduler.schedule()
        scheduler.commit(plan)
        allocated += scheduler.pool.used * SIZE
        filled += sum(request.computed for request in scheduler.running)
        moved = [request for request in (*plan.decodes, *plan.chunks) if request.remaining == 0]
        for request in moved:
            request.tokens.append(7)
        scheduler.finish_all([request for request in moved if len(request.tokens) >= request.max_length])
    return 1 - filled / allocated


def main() -> None:
    options = arguments(__doc__.splitlines()[0])
    torch.set_num_threads(THREADS)
    report = Report("preemption")
    contexts = (64, 512) if options.quick else (64, 4096)
    model = new({**SHAPE, "vocab_size": 512, "max_position_embeddings": 8192}, seed=0)
    model = model.eval().to(device_named("auto"))
    runs = 3 if options.quick else 9
    costs = [measure(report, model, context, runs) for context in contexts]
    # On a busy machine the highest rate is the one least disturbed.
    rates = max(costs, key=lambda cost: cost.tokens_per_second)
    report.notes.append(
        f"without a link the engine swaps contexts of {turn(model, rates, 8192)} tokens and more"
    )
    measure_link(report, model, rates, (TURN // 4, 4 * TURN), runs)
    report.ours["KV waste on mixed lengths, %"] = 100 * waste(100 if options.quick else 1000)
    report.limit["KV waste on mixed lengths, %"] = 5.0
    report.notes.append(f"{THREADS} threads, load average {os.getloadavg()[0]:.1f}")
    report.show(options.json)


if __name__ == "__main__":
    main()
