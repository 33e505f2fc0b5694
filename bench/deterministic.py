"""What it costs that a row's bits are its own: training's forward and backward, and decoding. 4M parameters, no peer.

Both sides compute the same model over the same tokens; torch's side has its fused attention and its own matrix products
in place of the compiled ones, and all else alike. Decoding runs operation by operation on both sides.
"""

import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from unittest.mock import patch

import torch

from common import Report, alternate, arguments, median, seconds
from rondo import ops
from rondo.client.types import SamplingParams
from rondo.engine.config import EngineConfig
from rondo.engine.entrypoints.llm import LLM
from rondo.engine.runner.compiled import CompiledDecoder
from rondo.models import Decoder, Packed, load
from small_model import write_small_model

DOCUMENTS, LENGTH, REQUESTS = 8, 256, 16


@contextmanager
def by_torch() -> Iterator[None]:
    """Without the compiled product, and without the attention that has its sums."""
    with ExitStack() as stack:
        for op in (ops.linear, ops.packed_attention):
            stack.enter_context(patch.object(op, "_fast", op._fast[1:]))
        stack.enter_context(patch("rondo.engine.runner.layout.library", lambda name: None))
        yield


def train(model: Decoder, documents: int) -> None:
    attend = Packed([LENGTH * i for i in range(documents + 1)])
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(3, model.config.vocab_size, (documents * LENGTH,), generator=generator)
    logits = model(tokens, attend.positions, attend)
    ops.token_logprobs(logits, tokens).sum().backward()
    model.zero_grad()


def operation_by_operation(model: Decoder) -> LLM:
    with patch.object(CompiledDecoder, "of", lambda *args: None):
        return LLM(model, config=EngineConfig(max_num_seqs=REQUESTS, prefix_cache=False))


def decode(llm: LLM, count: int) -> None:
    params = SamplingParams(max_tokens=count, ignore_eos=True, detokenize=False, temperature=0.0)
    llm.generate([[5 + i, 9, 11, 12] for i in range(REQUESTS)], params)


def both(runs: int, run: Callable[[], None]) -> dict[str, float]:
    def torchs() -> float:
        with by_torch():
            return seconds(run)

    run()
    timings = alternate(runs, ours=lambda: seconds(run), torch=torchs)
    return {name: median(values) for name, values in timings.items()}


def main() -> None:
    options = arguments(__doc__ or "")
    report = Report("deterministic")
    runs, documents, count = (2, 2, 8) if options.quick else (7, DOCUMENTS, 64)
    with tempfile.TemporaryDirectory() as root:
        folder = write_small_model(Path(root) / "small")
        for dtype in (torch.float32, torch.bfloat16):
            model = load(folder).to(dtype)
            name = str(dtype).removeprefix("torch.")
            for what, run in (
                ("training", partial(train, model, documents)),
                ("decoding", partial(decode, operation_by_operation(model), count)),
            ):
                found = both(runs, run)
                report.ours[f"{what} {name} s"] = found["ours"]
                report.peers.setdefault("torch", {})[f"{what} {name} s"] = found["torch"]
                report.ratios[f"{what} {name}, of torch's time"] = found["ours"] / found["torch"]
    report.show(options.json)


if __name__ == "__main__":
    main()
