"""LoRA: each covered linear module adds x Aᵀ Bᵀ · scale; only A and B are trained.

Names and shapes in files are Hugging Face's, through `files/mapping.py`. Where a checkpoint stacks several of our
linear modules into one (Phi-3's qkv_proj), they share its A, and each has its rows of B.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from rondo.base.errors import ModelError
from rondo.models.adapters import files, lora_config
from rondo.models.adapters.attached import AttachedAdapter, attach, attached, detach
from rondo.models.adapters.lora_config import LoraSpec
from rondo.models.architecture import Moe
from rondo.models.decoder import Decoder
from rondo.models.files.slots import TensorMapping
from rondo.models.parts import Linear
from rondo.models.quantized.parts import QuantizedLinear, QuantizedTensors
from rondo.ops import linear
from rondo.ops.gemm.linear import linear_gradients


class Lora(nn.Module):
    """a [r, in] and b [out, r] beside one Linear."""

    def __init__(self, a: nn.Parameter, b: nn.Parameter, scale: float) -> None:
        super().__init__()
        self.a = a
        self.b = b
        self.scale = scale

    def forward(self, x: Tensor) -> Tensor:
        plain = type(self.a) is nn.Parameter and x.dtype != self.a.dtype
        inner: Tensor = _Widened.apply(x, self.a) if plain else linear(x.to(self.a.dtype), self.a)  # type: ignore[no-untyped-call]
        return linear(inner, self.b) * self.scale

    def delta(self) -> Tensor:
        return (self.b.float() @ self.a.float()) * self.scale


class _Widened(torch.autograd.Function):
    """x @ A.T in A's wider type. It saves x as it is, which the base and other adapters save too, and converts it again
    in backward."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, a: Tensor) -> Tensor:
        ctx.save_for_backward(x, a)
        return linear(x.to(a.dtype), a)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, Tensor | None]:
        x, a = ctx.saved_tensors
        for_x, for_a, _ = linear_gradients(grads[0], x.to(a.dtype), a, (*ctx.needs_input_grad, False))
        return None if for_x is None else for_x.to(x.dtype), for_a


@dataclass(frozen=True)
class Target:
    """A linear module of a Hugging Face checkpoint, and the module or modules of the decoder that it maps to."""

    pieces: tuple[TensorMapping, ...]
    shape: tuple[int, ...]

    @property
    def paths(self) -> list[str]:
        return [piece.param.removesuffix(".weight") for piece in self.pieces]


def attach_lora(
    model: Decoder, spec: LoraSpec, *, seed: int = 0, dtype: torch.dtype = torch.float32
) -> AttachedAdapter:
    """A fresh adapter: A is random and B zero, so the model's outputs are unchanged until the first optimizer step."""
    generator = torch.Generator().manual_seed(seed)

    def fresh(name: str, target: Target, rank: int) -> tuple[Tensor, Tensor]:
        a = torch.empty(rank, target.shape[1])
        nn.init.kaiming_uniform_(a, a=math.sqrt(5), generator=generator)
        return a.to(model.device, dtype), torch.zeros(target.shape[0], rank, dtype=dtype, device=model.device)

    return attach(model, spec, _parts(model, spec, fresh, train=True), train=True)


def lora_size(model: Decoder, spec: LoraSpec) -> int:
    """Parameters of an adapter, from the model's shapes."""
    return sum(spec.rank(name) * sum(target.shape) for name, target in _covered(model, spec).items())


def load_lora(model: Decoder, folder: str | Path, *, train: bool = False) -> AttachedAdapter:
    """Attach the adapter in `folder`, written by PEFT or `save_lora`."""
    spec, parts = read_lora(model, folder, train=train)
    return attach(model, spec, parts, train=train)


def read_lora(
    model: Decoder,
    folder: str | Path,
    *,
    train: bool = False,
    max_rank: int | None = None,
    device: torch.device | None = None,
) -> tuple[LoraSpec, dict[str, nn.Module]]:
    """Reads the adapter in `folder` as modules by the path of the module that each adds to; the model stays
    unchanged."""
    folder = Path(folder)
    spec = lora_config.parse(files.read_config(folder), str(folder / files.CONFIG))
    covered = _covered(model, spec)
    files.check_rank(folder, max(map(spec.rank, covered)), max_rank)
    expected = {}
    for name, target in covered.items():
        rows, columns = target.shape
        expected[_key(name, "A")] = (spec.rank(name), columns)
        expected[_key(name, "B")] = (rows, spec.rank(name))
    tensors = files.read_tensors(folder, expected, device or model.device)

    def stored(name: str, target: Target, rank: int) -> tuple[Tensor, Tensor]:
        return tensors[_key(name, "A")], tensors[_key(name, "B")]

    return spec, _parts(model, spec, stored, train)


def save_lora(model: Decoder, folder: str | Path) -> None:
    """Write the attached adapter in PEFT's format."""
    spec, parts_by_path = _lora_of(model)
    tensors: dict[str, Tensor] = {}
    targets = _covered(model, spec)
    for name, target in targets.items():
        parts = [parts_by_path[path] for path in target.paths]
        tensors[_key(name, "A")] = parts[0].a
        tensors[_key(name, "B")] = parts[0].b if len(parts) == 1 else torch.cat([part.b for part in parts])
    if spec.base is None and model.folder is not None:
        spec = replace(spec, base=str(model.folder))
    files.write(Path(folder), lora_config.dump(spec, targets, linears(model)), tensors)


@torch.no_grad()
def merge(model: Decoder) -> None:
    """Add the adapter to the base's weights and detach it."""
    _, parts = _lora_of(model)
    if model.config.quantization is not None:
        raise ModelError("an adapter cannot be merged into quantized weights; serve it beside them")
    parameters = dict(model.named_parameters())
    for path, part in parts.items():
        weight = parameters[f"{path}.weight"]
        weight.copy_(weight.float() + part.delta())
    detach(model)


def linears(model: Decoder) -> dict[str, Target]:
    """The linear modules that an adapter may cover, by their Hugging Face names.

    In a mixture of experts these are attention's only: PEFT applies a feed-forward name to the experts as well.
    """
    modules = dict(model.named_modules())
    parameters = _shapes(model, modules)
    found = {}
    for slot in model.slots():
        target = Target(slot.pieces, slot.shape_for(parameters))
        linear_here = all(isinstance(modules.get(path), Linear) for path in target.paths)
        linear_here = linear_here and slot.name != "score.weight"  # trained whole, beside the adapter
        if linear_here and slot.name.endswith(".weight"):
            found[slot.name.removesuffix(".weight")] = target
    if _is_mixture(model):
        return {name: target for name, target in found.items() if ".mlp." not in target.paths[0]}
    return found


def _shapes(model: Decoder, modules: dict[str, nn.Module]) -> dict[str, Tensor]:
    """Parameters by the names in the mapping; a quantized weight is represented by an empty meta tensor of its
    shape."""
    parameters: dict[str, Tensor] = dict(model.named_parameters(remove_duplicate=False))
    for path, module in modules.items():
        if isinstance(module, QuantizedLinear):
            parameters[f"{path}.weight"] = torch.empty(module.quantized.shape, device="meta")
        elif isinstance(module, QuantizedTensors):
            parameters[path] = torch.empty(module.quantized.shape, device="meta")
    return parameters


def _is_mixture(model: Decoder) -> bool:
    return any(isinstance(layer.mlp, Moe) for layer in model.config.layers)


def _covered(model: Decoder, spec: LoraSpec) -> dict[str, Target]:
    if spec.covers_all and _is_mixture(model):
        raise ModelError(
            "LoRA over the experts of a mixture is not supported; name attention's modules in target_modules",
            param="target_modules",
        )
    known = linears(model)
    return {name: known[name] for name in spec.modules(known)}


Weights = Callable[[str, Target, int], tuple[Tensor, Tensor]]
"""(name, target, rank) -> A [r, in], B [out, r]."""


def _parts(model: Decoder, spec: LoraSpec, weights: Weights, train: bool) -> dict[str, nn.Module]:
    if train and spec.dropout:
        raise ModelError(
            f"training with lora_dropout {spec.dropout} is not supported, for a token's log-probability "
            "must not depend on chance; set it to 0",
            param="lora_dropout",
        )
    parts: dict[str, nn.Module] = {}
    for name, target in _covered(model, spec).items():
        a, b = weights(name, target, spec.rank(name))
        shared = nn.Parameter(a)
        for path, piece in zip(target.paths, target.pieces):
            parts[path] = Lora(shared, nn.Parameter(piece.theirs(b).contiguous()), spec.scale(name))
    return parts


def _lora_of(model: Decoder) -> tuple[LoraSpec, dict[str, Lora]]:
    adapter = attached(model)
    if not isinstance(adapter.spec, LoraSpec):
        raise ModelError("the attached adapter is not LoRA")
    return adapter.spec, {path: part for path, part in adapter.parts.items() if isinstance(part, Lora)}


def _key(module: str, matrix: str) -> str:
    return f"{files.PREFIX}{module}.lora_{matrix}.weight"
