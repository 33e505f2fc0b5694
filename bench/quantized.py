"""Products and decoding with weights of few bits, 0.6B Qwen3 shape, beside our own bf16 and torch's products.

Products are those of the compiled step, each with weights that lie in no cache, at several numbers of rows; torch
multiplies the same bf16 weights, and, where it can, int8 rows by int8 weights. Decoding is of whole models in one
engine each, which take turns: all in bf16, then with int8 and 4-bit layers, and with an int8 head beside them.
"""

import copy
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from common import THREADS, Report, alternate, arguments, median, say, seconds
from load import SHAPE
from rondo.client.types import GenerateRequest, SamplingParams
from rondo.engine.config import EngineConfig
from rondo.engine.core import EngineCore
from rondo.models import Decoder, new
from rondo.models.quantized.parts import QuantizedLinear
from rondo.ops.gemm.quantized import Quantized, pack
from rondo.ops.native.decoder.layers import PROJECTIONS, DenseDecoder, Ends

PRODUCTS = {"qkv": (1024, 4096), "gate and up": (1024, 6144), "down": (3072, 1024)}
"""[K, N]."""
FAR = 160 << 20
"""Bytes of weights that are gone through in turn, so that none is found in a cache."""
GROUP = 128


def int8(weight: Tensor, activations: Any = "float") -> Quantized:
    scales = weight.abs().amax(1, keepdim=True).clamp(min=1e-9) / 127
    return Quantized("int8", (weight / scales).round().to(torch.int8), scales, activations=activations)


def int4(weight: Tensor) -> Quantized:
    groups = weight.unflatten(1, (-1, GROUP))
    scales = groups.abs().amax(-1, keepdim=True).clamp(min=1e-9) / 7
    codes = (groups / scales).round().clamp(-8, 7) + 8
    return Quantized("int4", pack(codes.to(torch.uint8).flatten(1)), scales[..., 0])


def fp8(weight: Tensor) -> Quantized:
    scales = weight.abs().amax(1, keepdim=True).clamp(min=1e-9) / 448
    return Quantized("fp8", (weight / scales).to(torch.float8_e4m3fn), scales)


def mxfp4(weight: Tensor) -> Quantized:
    """Its numbers are anything: they take as long."""
    rows, columns = weight.shape
    codes = torch.randint(0, 256, (rows, columns // 2), dtype=torch.uint8)
    return Quantized("mxfp4", codes, torch.full((rows, columns // 32), 118, dtype=torch.uint8))


KINDS: dict[str, Callable[[Tensor], Quantized]] = {
    "int8": int8,
    "int8 by int8": lambda weight: int8(weight, "int8"),
    "int4": int4,
    "mxfp4": mxfp4,
    "fp8": fp8,
}


def product(weight: Tensor | Quantized, like: Tensor) -> Callable[[Tensor], Tensor]:
    """By the compiled step, as its head: with a norm of the rows, which takes next to nothing."""
    ends = Ends(like, None, torch.ones(like.shape[1], dtype=like.dtype), weight)
    return DenseDecoder([], ends, 1e-6, 0.0).head


def torch_int8(weight: Tensor) -> Callable[[Tensor], Tensor]:
    """The same work: rows are rounded by their own scales, and sums scaled back."""
    rounded = int8(weight.float())
    turned, scales = rounded.data.T, rounded.scales.T

    def multiply(x: Tensor) -> Tensor:
        steps = x.abs().amax(1, keepdim=True).float() / 127
        whole = (x.float() / steps).round().to(torch.int8)
        return torch._int_mm(whole, turned) * steps * scales

    return multiply


def sides_of(inputs: int, width: int, copies: int, peer: bool) -> dict[str, list[Callable[[Tensor], Tensor]]]:
    plain = [torch.randn(width, inputs, dtype=torch.bfloat16) / inputs**0.5 for _ in range(copies)]
    sides = {"bf16": [product(weight, weight) for weight in plain]}
    for name, quantize in KINDS.items():
        sides[name] = [product(quantize(weight.float()), weight) for weight in plain]
    if peer:
        sides["torch bf16"] = [lambda x, weight=weight: F.linear(x, weight) for weight in plain]  # type: ignore[misc]
        sides["torch int8 by int8"] = [torch_int8(weight) for weight in plain]
    return sides


def products(report: Report, rows: list[int], runs: int, peer: bool) -> None:
    for shape, (inputs, width) in PRODUCTS.items():
        sides = sides_of(inputs, width, max(2, FAR // (inputs * width * 2)) if runs > 1 else 2, peer)
        for count in rows:
            x = torch.randn(count, inputs).bfloat16()

            def microseconds(side: list[Callable[[Tensor], Tensor]], x: Tensor = x) -> float:
                return seconds(lambda: [multiply(x) for multiply in side]) / len(side) * 1e6

            timings = alternate(
                runs, **{name: lambda side=side: microseconds(side) for name, side in sides.items()}
            )
            found = {name: median(values) for name, values in timings.items()}
            for name, value in found.items():
                figure = f"{shape}, {count} rows, {name.removeprefix('torch ')}, us"
                if name.startswith("torch"):
                    report.peers["torch"][figure] = value
                else:
                    report.ours[figure] = value
            for name in ("int8", "int4"):
                report.ratios[f"{shape}, {count} rows, bf16 / {name}"] = found["bf16"] / found[name]
        say(f"{shape} is done")


def quantized_model(plain: Decoder, quantize: Callable[[Tensor], Quantized], head: bool) -> Decoder:
    """Shares what is not quantized."""
    kept = {id(parameter): parameter for parameter in plain.parameters()}
    model: Decoder = copy.deepcopy(plain, kept)
    for layer in model.layers:
        for name in PROJECTIONS:
            half = layer.attention if name in "qkvo" else layer.mlp
            part = getattr(half, name)
            setattr(half, name, QuantizedLinear(quantize(part.weight.detach().float()), part.bias))
    if head:
        model.head.out = QuantizedLinear(int8(model.head.out.weight.detach().float()))
    return model


def engine_of(model: Decoder, batch: int, tokens: int) -> EngineCore:
    """An engine whose requests have their prompts behind them."""
    core = EngineCore(model, EngineConfig(max_num_seqs=batch, kv_cache_bytes=2 << 30))
    params = SamplingParams(max_tokens=tokens, temperature=0.0, ignore_eos=True, detokenize=False)
    for i in range(batch):
        core.add(GenerateRequest(str(i), [100 + i + j for j in range(32)], params))
    core.step()
    return core


def decoding(report: Report, layers: int, batches: list[int], runs: int, steps: int) -> None:
    plain = new(SHAPE | {"num_hidden_layers": layers}, dtype=torch.bfloat16).requires_grad_(False)
    models = {"bf16": plain}
    for name in ("int8", "int4"):
        models[name] = quantized_model(plain, KINDS[name], head=False)
        models[f"{name}, int8 head"] = quantized_model(plain, KINDS[name], head=True)
    for batch in batches:
        cores = {name: engine_of(model, batch, (runs + 1) * steps + 8) for name, model in models.items()}

        def rate(core: EngineCore, batch: int = batch) -> float:
            return batch * steps / seconds(lambda: [core.step() for _ in range(steps)])

        timings = alternate(runs, **{name: lambda core=core: rate(core) for name, core in cores.items()})
        found = {name: median(values) for name, values in timings.items()}
        for name, value in found.items():
            report.ours[f"decode, batch {batch}, {name}, tokens/s"] = value
            if name != "bf16":
                report.ratios[f"decode, batch {batch}, {name} / bf16"] = value / found["bf16"]
        say(f"decode of {batch} is done")


def main() -> None:
    options = arguments(__doc__ or "", torch="")
    torch.set_num_threads(THREADS)
    layers, runs, steps = (2, 1, 2) if options.quick else (28, 5, 16)
    report = Report("quantized", notes=[f"{THREADS} threads, {layers} layers"])
    if options.peers:
        report.peers["torch"] = {}
    with torch.inference_mode():
        products(report, [1, 16] if options.quick else [1, 4, 16, 64], runs, bool(options.peers))
    decoding(report, layers, [1] if options.quick else [1, 16], runs, steps)
    report.show(options.json)


if __name__ == "__main__":
    main()
