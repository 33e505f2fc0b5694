"""What a training step keeps in memory, and what it computes, by memory policy.

A Llama shape of 27M parameters takes steps of one row with documents of 512 tokens, on a CPU; each policy in a process
of its own. The peak is what the process has resident beyond what it had before the model was made: weights, gradients
and the optimizer's state included. Of files that are mapped only what is in the process counts; the kernel may
keep more of them, and takes it back when memory is short. Time is that of the process's cores, added up.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch

from common import THREADS, Report, arguments, say
from rondo import models
from rondo.data.batching.packing import Document, pack
from rondo.train.config import OptimConfig
from rondo.train.learner.learner import Learner
from rondo.train.losses.sums import cross_entropy

SHAPE = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 16384,
    "hidden_size": 384,
    "intermediate_size": 1152,
    "num_hidden_layers": 8,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "max_position_embeddings": 2048,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": False,
}
CASES: dict[str, dict[str, str]] = {
    "fp32": {},
    "fp32, selective": {"checkpointing": "selective"},
    "fp32, full": {"checkpointing": "full"},
    "fp32, logits in parts": {"logits": "chunked"},
    "fp32, full, logits in parts": {"checkpointing": "full", "logits": "chunked"},
    "fp32, optimizer on disk": {"offload": "optimizer"},
    "fp32, all on disk": {"offload": "all"},
    "bf16 over masters": {"precision": "bfloat16"},
    "bf16, masters on disk": {"precision": "bfloat16", "offload": "optimizer"},
    "fp8 over masters": {"precision": "fp8"},
}


def rows(tokens: int, length: int = 512) -> list[Document]:
    draw = torch.Generator().manual_seed(0)
    texts = torch.randint(0, SHAPE["vocab_size"], (tokens // length, length), generator=draw)
    return [Document(text.tolist(), [1.0] * length) for text in texts]


def resident(key: str) -> float:
    """MiB."""
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(key))
    return int(line.split()[1]) / 1024


def measure(name: str, tokens: int, steps: int, folder: str) -> None:
    """Prints the figures of one policy; the first step makes the optimizer's state, and is not timed."""
    torch.set_num_threads(THREADS)
    told = dict(CASES[name])
    if "offload" in told:
        told["offload_to"] = folder
    batch = pack(rows(tokens), tokens)
    torch.ones(1).sum()
    before = resident("VmRSS")
    learner = Learner(models.new(SHAPE), OptimConfig.model_validate(told))
    seconds = []
    for _ in range(1 + steps):
        begin = time.process_time()
        learner.forward_backward(batch, cross_entropy)
        learner.optim_step()
        seconds.append(time.process_time() - begin)
    print(json.dumps({"mib": resident("VmHWM") - before, "seconds": min(seconds[1:])}))


def main() -> None:
    if sys.argv[1:2] == ["--one"]:
        parser = argparse.ArgumentParser()
        parser.add_argument("--one", nargs=4)
        name, tokens, steps, folder = parser.parse_args().one
        measure(name, int(tokens), int(steps), folder)
        return
    options = arguments(__doc__ or "")
    tokens, steps = (1024, 1) if options.quick else (2048, 2)
    report = Report(f"a training step of {tokens} tokens, by memory policy")
    for name in CASES:
        say(name)
        with tempfile.TemporaryDirectory(dir=os.environ.get("TMPDIR")) as folder:
            asked = [sys.executable, __file__, "--one", name, str(tokens), str(steps), folder]
            done = subprocess.run(asked, capture_output=True, text=True, check=True)
        found = json.loads(done.stdout.splitlines()[-1])
        report.ours[f"{name}: peak, MiB"] = found["mib"]
        report.ours[f"{name}: seconds of a core a step"] = found["seconds"]
    report.show(options.json)


if __name__ == "__main__":
    main()
