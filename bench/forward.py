"""Forward pass of one packed 4,096-token row, 0.6B Qwen3 shape, bf16 and fp32, beside transformers with SDPA.

Both sides hold the same random weights and the same row of four documents, compute logits for every token, and must
agree on them before anything is timed. transformers is given the documents as restarting position ids. Where the
library's own bf16 products alone would take it longer than LONGEST seconds, it is not run, and the table says so.
"""

import sys
from collections.abc import Callable
from typing import Any

import torch

from common import THREADS, Report, alternate, arguments, median, say, seconds
from load import SHAPE
from rondo.models import Packed, new
from rondo.models.files.mapping import to_hf

DOCUMENTS = (1500, 1200, 900, 496)
LONGEST = 600


def ours(model: Any, tokens: torch.Tensor, starts: list[int]) -> torch.Tensor:
    attend = Packed(starts)
    with torch.no_grad():
        logits: torch.Tensor = model(tokens, attend.positions, attend)
    return logits


def theirs(model: Any, tokens: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        logits: torch.Tensor = model(tokens[None], position_ids=positions[None], use_cache=False).logits[0]
    return logits


def transformers_twin(model: Any, dtype: torch.dtype) -> Any:
    from transformers import Qwen3Config, Qwen3ForCausalLM

    shape = {key: value for key, value in model.config.hf.items() if key not in ("rope_theta", "torch_dtype")}
    config = Qwen3Config(**shape, rope_parameters={"rope_type": "default", "rope_theta": 1000000.0})
    config._attn_implementation = "sdpa"
    with torch.device("meta"):
        twin = Qwen3ForCausalLM(config).to(dtype)
    twin.load_state_dict(dict(to_hf(model)), strict=False, assign=True)
    twin.tie_weights()
    twin.model.rotary_emb = type(twin.model.rotary_emb)(config)
    return twin.eval()


def measure(dtype: torch.dtype, layers: int, runs: int, peer: bool) -> dict[str, float]:
    model = new(SHAPE | {"num_hidden_layers": layers}, dtype=dtype)
    tokens = torch.randint(
        0, model.config.vocab_size, (sum(DOCUMENTS),), generator=torch.Generator().manual_seed(0)
    )
    starts = [0, *torch.tensor(DOCUMENTS).cumsum(0).tolist()]
    sides: dict[str, Callable[[], Any]] = {"rondo": lambda: ours(model, tokens, starts)}
    if peer:
        twin = transformers_twin(model, dtype)
        sides["transformers"] = lambda: theirs(twin, tokens, Packed(starts).positions)
        ours_logits, their_logits = sides["rondo"]().float(), sides["transformers"]().float()
        difference = float((ours_logits - their_logits).abs().max() / their_logits.abs().max())
        say(f"{dtype}: logits differ by {difference:.2e} relative")
        if difference > (1e-4 if dtype == torch.float32 else 5e-2):
            sys.exit(f"the two sides do not compute the same thing: {difference}")
        del ours_logits, their_logits
    timings = alternate(runs, **{name: (lambda run=run: seconds(run)) for name, run in sides.items()})
    say(f"{dtype}: {timings}")
    return {name: median(values) for name, values in timings.items()}


def matmul_limit(dtype: torch.dtype, layers: int) -> float:
    """Seconds the matrix products alone would take at the rate one large fp32 or bf16 product reaches here."""
    parameters = new(SHAPE | {"num_hidden_layers": layers, "vocab_size": 8}, dtype=dtype)
    inner = sum(p.numel() for p in parameters.layers.parameters())
    flops = 2 * sum(DOCUMENTS) * (inner + SHAPE["vocab_size"] * SHAPE["hidden_size"])  # type: ignore[operator]
    size = 2048
    a = torch.randn(size, size).to(dtype)
    runs = 1 if seconds(lambda: a[:64] @ a) > 0.1 else 5
    rate = 2 * size**3 / min(seconds(lambda: a @ a) for _ in range(runs))
    return flops / rate


def main() -> None:
    options = arguments(__doc__ or "", transformers="")
    torch.set_num_threads(THREADS)
    layers, runs = (2, 1) if options.quick else (28, 3)
    report = Report("forward", notes=[f"{THREADS} threads, {layers} layers, documents {DOCUMENTS}"])
    if options.peers:
        report.peers["transformers"] = {}
    report.limit["how"] = "the same matrix products at the rate of one 2048-cube product of that dtype"
    for dtype in (torch.float32, torch.bfloat16):
        figure = f"{str(dtype).removeprefix('torch.')}, s"
        report.limit[figure] = limit = matmul_limit(dtype, layers)
        if options.peers and limit > LONGEST:
            report.notes.append(f"transformers is not run in {dtype}: its products alone take {limit:.0f} s")
        result = measure(dtype, layers, runs, bool(options.peers) and limit <= LONGEST)
        report.ours[figure] = result["rondo"]
        if "transformers" in result:
            report.peers["transformers"][figure] = result["transformers"]
            report.ratios[f"transformers / rondo, {figure}"] = result["transformers"] / result["rondo"]
    report.show(options.json)


if __name__ == "__main__":
    main()
