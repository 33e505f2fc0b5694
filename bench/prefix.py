"""Time to the first token of a prompt whose first 2,000 tokens the engine has seen, beside one it has not.

Every prompt is 2,000 tokens and 16 more. Cold, all of it is new, and the engine computes it; warm, the 2,000 were in
an earlier prompt and the 16 are new. Both kinds run in turn through one engine with its prefix cache on, whose blocks
do not hold more than a few such prompts, so that old ones are evicted as in use. The script checks how many tokens
came from the cache. What is asked for is a tenth of the cold time.
"""

import os
import random

import torch

from common import THREADS, Report, alternate, arguments, median, say, seconds
from rondo.client.types import GenerateRequest, SamplingParams
from rondo.engine.config import EngineConfig
from rondo.engine.core import EngineCore
from rondo.models import Decoder, new
from rondo.models.devices import device_named
from small_model import LARGER, SHAPE

PREFIX, SUFFIX, SIZE, KEPT = 2000, 16, 16, 4


class Prompts:
    """Through one engine; `prefix` is the beginning it has seen."""

    def __init__(self, model: Decoder) -> None:
        config = EngineConfig(
            block_size=SIZE,
            num_blocks=KEPT * ((PREFIX + SUFFIX) // SIZE + 1),
            max_model_len=PREFIX + SUFFIX + 1,
            max_num_seqs=1,
            threads=THREADS,
        )
        self.core = EngineCore(model, config)
        self.rng = random.Random(0)
        self.prefix: list[int] = []

    def new(self, length: int) -> list[int]:
        return [self.rng.randrange(3, 300) for _ in range(length)]

    def cold(self) -> float:
        self.prefix = self.new(PREFIX)
        return self.first_token(hit=0)

    def warm(self) -> float:
        return self.first_token(hit=PREFIX)

    def first_token(self, hit: int) -> float:
        params = SamplingParams(max_tokens=1, ignore_eos=True, detokenize=False)
        prompt = self.prefix + self.new(SUFFIX)

        def run() -> None:
            (request,) = self.core.add(GenerateRequest("next", prompt, params))
            while self.core.has_work:
                self.core.step()
            assert request.cached == hit, (request.cached, hit)
            assert request.generated == 1

        return seconds(run)


def measure(report: Report, name: str, model: Decoder, runs: int) -> None:
    say(name)
    prompts = Prompts(model)
    alternate(1, cold=prompts.cold, warm=prompts.warm)
    times = alternate(runs, cold=prompts.cold, warm=prompts.warm)
    cold, warm = median(times["cold"]), median(times["warm"])
    report.ours |= {f"{name}, cold, ms": 1e3 * cold, f"{name}, repeated, ms": 1e3 * warm}
    report.limit[f"{name}, repeated, ms"] = 1e2 * cold
    report.ratios[f"{name}, cold / repeated"] = cold / warm


def main() -> None:
    options = arguments(__doc__.splitlines()[0])
    torch.set_num_threads(THREADS)
    report = Report("prefix", limit={"how": "a tenth of the cold time"})
    for name, larger in {"4M": {}, "25M": LARGER}.items():
        model = new({**SHAPE, "vocab_size": 512, "max_position_embeddings": 4096, **larger}, seed=0)
        measure(report, name, model.eval().to(device_named("auto")), 2 if options.quick else 9)
    report.notes.append(
        f"{PREFIX} + {SUFFIX} tokens; {THREADS} threads, load average {os.getloadavg()[0]:.1f}"
    )
    report.show(options.json)


if __name__ == "__main__":
    main()
