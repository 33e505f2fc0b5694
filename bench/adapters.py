"""Many adapters at once: tokens generated a second by mixed requests for 100 LoRA adapters, beside the base alone.

Both sides are the same engine, model, prompts and lengths; ends of text are ignored, so both give exactly the same
number of tokens. On the one side every request is for the base, on the other each is for an adapter drawn at random:
64 requests run at once, so a step has about 47 different adapters in it. All adapters are loaded before it is timed.
Two kinds, of rank 8: over the queries and values alone (PEFT's default), and over all linear modules.
"""

import os
import random
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from common import THREADS, Report, alternate, arguments, median, say
from rondo.client.types import SamplingParams
from rondo.engine.config import EngineConfig
from rondo.engine.entrypoints.llm import LLM
from rondo.models import load
from rondo.models.adapters import LoraSpec, attach_lora, detach, save_lora, trainable
from small_model import LARGER, write_small_model

ADAPTERS, BATCH, REQUESTS, PROMPT, ANSWER = 100, 64, 192, 24, 48
MODELS: dict[str, dict[str, Any]] = {
    "4M": {},
    "25M": LARGER,
}
KINDS: dict[str, tuple[str, ...] | str] = {"q and v": ("q_proj", "v_proj"), "all linear": "all-linear"}


def write_adapters(base: Path, folder: Path, targets: tuple[str, ...] | str) -> None:
    model = load(base)
    generator = torch.Generator().manual_seed(0)
    for i in range(ADAPTERS):
        attach_lora(model, LoraSpec(r=8, alpha=16, targets=targets), seed=i)
        with torch.no_grad():
            for parameter in trainable(model):
                parameter.normal_(0.0, 0.02, generator=generator)
        save_lora(model, folder / f"adapter{i}")
        detach(model)


def side(base: Path, adapters: Path, names: list[str | None]) -> Callable[[], float]:
    """Tokens a second."""
    config = EngineConfig(
        max_num_seqs=BATCH,
        prefix_cache=False,
        threads=THREADS,
        adapters_dir=str(adapters),
        max_loaded_adapters=ADAPTERS,
    )
    llm = LLM(load(base), config=config)
    rng = random.Random(0)
    prompts = [[rng.randrange(3, 300) for _ in range(PROMPT)] for _ in names]
    lengths = [rng.randrange(ANSWER // 2, ANSWER + 1) for _ in names]
    params = [SamplingParams(max_tokens=n, ignore_eos=True, detokenize=False) for n in lengths]

    def generate() -> float:
        start = time.perf_counter()
        outputs = llm.generate(prompts, params, adapter=names)
        took = time.perf_counter() - start
        assert [len(output.outputs[0].token_ids) for output in outputs] == lengths
        return sum(lengths) / took

    for name in {name for name in names if name is not None}:
        llm.core.adapters.release(llm.core.adapters.hold(name))
    generate()
    return generate


def main() -> None:
    options = arguments(__doc__.splitlines()[0])
    torch.set_num_threads(THREADS)
    report = Report("adapters")
    runs = 3 if options.quick else 9
    requests = BATCH if options.quick else REQUESTS
    rng = random.Random(1)
    names: list[str | None] = [f"adapter{rng.randrange(ADAPTERS)}" for _ in range(requests)]
    with tempfile.TemporaryDirectory() as root:
        for model, changes in MODELS.items():
            base = write_small_model(Path(root) / model, **changes)
            sides = {}
            for kind, targets in KINDS.items():
                say(f"{model}: {ADAPTERS} adapters, {kind}")
                folder = Path(root) / f"{model}, {kind}"
                write_adapters(base, folder, targets)
                sides[kind] = side(base, folder, names)
            sides["base"] = side(base, folder, [None] * requests)
            rates = {name: median(values) for name, values in alternate(runs, **sides).items()}
            report.ours[f"tokens/s, {model}, base alone"] = rates["base"]
            for kind in KINDS:
                report.ours[f"tokens/s, {model}, {kind}"] = rates[kind]
                report.ratios[f"{model}, {kind}, to the base alone"] = rates[kind] / rates["base"]
    report.notes.append(f"{THREADS} threads, load average {os.getloadavg()[0]:.1f}")
    report.show(options.json)


if __name__ == "__main__":
    main()
