"""A training step with full weights, LoRA and QLoRA: seconds, and peak memory beside the planner's figure.

A random Llama shape of 110M parameters (--quick: 27M) takes steps of one row with documents of 512 tokens on a CPU,
each method in a process of its own. The peak is the process's whole resident memory, including libraries and
mapped files.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch

from common import THREADS, Report, arguments, say
from rondo import models
from rondo.data.batching.packing import pack
from rondo.models.adapters import LoraSpec, attach_lora
from rondo.models.quantized.quantize.making import load_nf4
from rondo.plan.finetune import Tuning, memory
from rondo.plan.sizes.hf import read_config, shape_of
from rondo.train.config import OptimConfig
from rondo.train.learner.learner import Learner
from rondo.train.losses.sums import cross_entropy
from train_memory import SHAPE, resident, rows

LARGER = SHAPE | {
    "hidden_size": 768,
    "intermediate_size": 2048,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "num_key_value_heads": 12,
}
CASES = {
    "full, fp32": ("full", "float32"),
    "LoRA, fp32": ("lora", "float32"),
    "LoRA, bf16": ("lora", "bfloat16"),
    "QLoRA, fp32": ("qlora", "float32"),
    "QLoRA, bf16": ("qlora", "bfloat16"),
}
RANK = 16


def measure(name: str, tokens: int, steps: int, folder: str) -> None:
    """Prints the figures of one method; the first step is not timed."""
    torch.set_num_threads(THREADS)
    method, number = CASES[name]
    dtype, cpu = getattr(torch, number), torch.device("cpu")
    batch = pack(rows(tokens), tokens)
    model = load_nf4(Path(folder), dtype, cpu) if method == "qlora" else models.load(folder, dtype)
    if method != "full":
        attach_lora(model, LoraSpec(RANK, 2 * RANK))
    learner = Learner(model, OptimConfig())
    seconds = []
    for _ in range(1 + steps):
        begin = time.process_time()
        learner.forward_backward(batch, cross_entropy)
        learner.optim_step()
        seconds.append(time.process_time() - begin)
    print(json.dumps({"mib": resident("VmHWM"), "seconds": min(seconds[1:])}))


def predicted(name: str, tokens: int, folder: Path) -> float:
    """The planner's figure in MiB."""
    method, number = CASES[name]
    tuning = Tuning(method, number, number, RANK, tokens=tokens, length=512, kind="cpu")  # type: ignore[arg-type]
    return memory(shape_of(read_config(folder), "bench"), tuning).total / 2**20


def main() -> None:
    if sys.argv[1:2] == ["--one"]:
        parser = argparse.ArgumentParser()
        parser.add_argument("--one", nargs=4)
        name, tokens, steps, folder = parser.parse_args().one
        measure(name, int(tokens), int(steps), folder)
        return
    options = arguments(__doc__ or "")
    tokens, steps = (1024, 1) if options.quick else (2048, 2)
    report = Report(f"a training step of {tokens} tokens: full weights, LoRA and QLoRA")
    with tempfile.TemporaryDirectory() as work:
        folder = Path(work) / "base"
        models.save(models.new(SHAPE if options.quick else LARGER).to(torch.bfloat16), folder)
        for name in CASES:
            say(name)
            asked = [sys.executable, __file__, "--one", name, str(tokens), str(steps), str(folder)]
            done = subprocess.run(asked, capture_output=True, text=True, check=True)
            found = json.loads(done.stdout.splitlines()[-1])
            report.ours[f"{name}: peak, MiB"] = found["mib"]
            report.limit[f"{name}: peak, MiB"] = predicted(name, tokens, folder)
            report.ours[f"{name}: seconds of a core a step"] = found["seconds"]
    report.show(options.json)


if __name__ == "__main__":
    main()
