"""Loading a 0.6B-parameter bf16 safetensors model: time and peak memory, beside transformers.from_pretrained.

Each load is a process of its own. Both sides read the same folder, already in the page cache, end with every weight
touched once (summed), and report the high-water mark of their resident memory less what it was after the imports.
"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path

from common import Report, alternate, arguments, median, say

SHAPE = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "vocab_size": 151936,
    "hidden_size": 1024,
    "num_hidden_layers": 28,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "intermediate_size": 3072,
    "max_position_embeddings": 40960,
    "tie_word_embeddings": True,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-6,
    "rope_theta": 1000000.0,
    "torch_dtype": "bfloat16",
}

CHILD = """
import json, resource, sys, time
import torch
{imports}
def resident(field):
    for line in open('/proc/self/status'):
        if line.startswith(field):
            return int(line.split()[1]) / 1024
before = resident('VmRSS')
start = time.perf_counter()
model = {load}
loaded = time.perf_counter() - start
total = sum(float(p.detach().view(-1)[::512].float().sum()) for p in model.parameters())
touched = time.perf_counter() - start
print(json.dumps(dict(load_s=loaded, touched_s=touched, peak_mib=resident('VmHWM') - before,
                      parameters=sum(p.numel() for p in model.parameters()))))
"""
SIDES = {
    "rondo": ("from rondo.models import load", "load({path!r})"),
    "transformers": (
        "from transformers import AutoModelForCausalLM, Qwen3ForCausalLM",
        "AutoModelForCausalLM.from_pretrained({path!r}, dtype=torch.bfloat16)",
    ),
}


def run(side: str, path: str) -> dict[str, float]:
    imports, load = SIDES[side]
    code = CHILD.format(imports=imports, load=load.format(path=path))
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=600)
    if out.returncode:
        raise SystemExit(f"{side} failed:\n{out.stderr[-2000:]}")
    result: dict[str, float] = json.loads(out.stdout.strip().splitlines()[-1])
    return result


def main() -> None:
    options = arguments(__doc__ or "", transformers="")
    import torch

    from rondo.models import new, save

    shape = SHAPE | ({"num_hidden_layers": 2, "vocab_size": 4096} if options.quick else {})
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder) / "model")
        model = new(shape, dtype=torch.bfloat16)
        weights = sum(p.numel() * p.element_size() for p in model.parameters()) / 2**20
        save(model, path)
        del model
        say(f"model made: {weights:.0f} MiB of weights")
        details: dict[str, list[dict[str, float]]] = {side: [] for side in ("rondo", *options.peers)}

        def one(side: str) -> float:
            details[side].append(run(side, path))
            say(f"{side}: {details[side][-1]}")
            return details[side][-1]["load_s"]

        alternate(2 if options.quick else 5, **{side: (lambda side=side: one(side)) for side in details})

    def figures(side: str) -> dict[str, float]:
        middle = {
            key: median([run[key] for run in details[side]]) for key in ("load_s", "touched_s", "peak_mib")
        }
        return {
            "load, s": middle["load_s"],
            "load and touch every page once, s": middle["touched_s"],
            "peak memory over the imports, MiB": middle["peak_mib"],
            "peak memory / weights": middle["peak_mib"] / weights,
        }

    report = Report("load", ours=figures("rondo"))
    for peer in options.peers:
        report.peers[peer] = figures(peer)
        for key in ("load, s", "load and touch every page once, s"):
            report.ratios[f"{peer} / rondo, {key}"] = float(report.peers[peer][key]) / report.ours[key]
    report.limit = {"peak memory / weights": 1.0, "how": "the weights themselves"}
    report.show(options.json)


if __name__ == "__main__":
    main()
