"""Reading quantized weights: dividing a checkpoint into plain and quantized tensors, validation, and replacing model
parts."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from rondo.base.errors import ModelError
from rondo.models.decoder import Decoder
from rondo.models.files.headers import some
from rondo.models.files.safetensors import StoredTensor
from rondo.models.files.slots import Slot, TensorMapping
from rondo.models.parts import Experts, Linear
from rondo.models.quantized.formats import LAYOUTS, Want
from rondo.models.quantized.parts import QuantizedExperts, QuantizedLinear
from rondo.models.quantized.scheme import FIELD, Scheme
from rondo.ops import Quantized

Files = dict[str, StoredTensor]
CACHE_SCALES = re.compile(r"\.[kv]_scale$")
"""Scales of an fp8 KV cache, which are ignored: the engine's cache has its own."""

NAN = 0x7F
"""NaN in e4m3, without the sign bit."""
PIECE_BYTES = 16 << 20
PACKS_ROWS = ("gptq", "awq")
"""Formats that pack eight rows of the zeros or of the weight without padding; other formats pad the last ones."""


@dataclass(frozen=True)
class Weight:
    """A quantized weight of the checkpoint; `slot` is its slot in a plain checkpoint."""

    slot: Slot
    module: str
    scheme: Scheme
    shape: tuple[int, ...]
    """[N, K], or [E, N, K] for all experts."""

    @property
    def wants(self) -> list[Want]:
        return LAYOUTS[self.scheme.format].wants(self.scheme, self.shape)


def divide(model: Decoder, table: list[Slot]) -> tuple[list[Slot], list[Weight]]:
    """The slots of plain tensors, and the quantized weights. `model` is plain, and only its shapes are used."""
    quantization = model.config.quantization
    if quantization is None:
        return table, []
    modules = dict(model.named_modules())
    parameters: dict[str, Tensor] = dict(model.named_parameters(remove_duplicate=False))
    plain, held = [], []
    for slot in table:
        name = slot.name.removesuffix(".weight")
        scheme = quantization.scheme_of(name) if _may_be(slot, modules) else None
        if scheme is None:
            plain.append(slot)
            continue
        shape = slot.shape_for(parameters)
        if slot.pieces[0].transposed:
            shape = (*shape[:-2], shape[-1], shape[-2])
        _check_form(name, scheme, shape, quantization.method)
        held.append(Weight(slot, name, scheme, shape))
    _check_whole_experts(held, modules)
    if not held:
        raise ModelError(
            f"config.json: {FIELD} names no weight of a {model.config.family} model; "
            "take it out if the weights are plain",
            param=FIELD,
        )
    return plain, held


def _check_form(name: str, scheme: Scheme, shape: tuple[int, ...], method: str) -> None:
    """Raises unless the format fits the shape: MXFP4 has all experts of a layer in one tensor [E, N, K], other formats
    one matrix."""
    if (len(shape) == 3) != (scheme.format == "mxfp4"):
        raise ModelError(
            f"config.json: {FIELD}.quant_method is {method!r}, which has no form for {name} {list(shape)}: "
            + (
                "experts in one tensor are read plain or in mxfp4"
                if len(shape) == 3
                else "it is of experts alone"
            ),
            param=f"{FIELD}.quant_method",
        )


def _may_be(slot: Slot, modules: dict[str, nn.Module]) -> bool:
    """Whether all pieces of the slot are weights of linear modules or of experts."""
    owners = [(modules[path], leaf) for path, _, leaf in (p.param.rpartition(".") for p in slot.pieces)]
    return all(
        (isinstance(owner, Linear) and leaf == "weight")
        or (isinstance(owner, Experts) and leaf in ("gate", "up", "down"))
        for owner, leaf in owners
    )


def _check_whole_experts(held: list[Weight], modules: dict[str, nn.Module]) -> None:
    """Raises unless the experts of a layer are all quantized or all plain, because they are one module here."""
    seen: Counter[str] = Counter()
    schemes: dict[str, set[Scheme]] = {}
    for weight in held:
        for piece in weight.slot.pieces:
            owner = piece.param.rpartition(".")[0]
            if isinstance(modules[owner], Experts):
                seen[owner] += 1
                schemes.setdefault(piece.param, set()).add(weight.scheme)
    for owner, count in seen.items():
        experts = modules[owner]
        assert isinstance(experts, Experts)
        if count not in (3, 3 * len(experts.gate)):
            raise ModelError(
                f"config.json: {FIELD} leaves some of {owner} unquantized: all or none", param=FIELD
            )
    for param, found in schemes.items():
        if len(found) > 1:
            raise ModelError(
                f"config.json: {FIELD} quantizes experts of {param} in different ways", param=FIELD
            )


@dataclass
class _Problems:
    """Problems by kind, with the affected tensors."""

    found: dict[str, list[str]] = field(default_factory=dict)

    def add(self, kind: str, told: str) -> None:
        self.found.setdefault(kind, []).append(told)

    def __str__(self) -> str:
        return "; ".join(f"{len(names)} {kind}: {some(names, 4)}" for kind, names in self.found.items())


def check(weights: list[Weight], plain: list[Slot], stored: Files, where: object) -> Files:
    """Validates the quantized weights and returns the other tensors of the checkpoint. Biases of zeros that the model
    does not have are dropped, because some writers add a bias to every module."""
    problems, rest = _Problems(), dict(stored)
    known = {slot.name for slot in plain}
    for weight in weights:
        if uneven := _uneven(weight):
            problems.add(*uneven)
            continue
        for want in weight.wants:
            tensor = rest.pop(weight.module + want.ends, None)
            _check_tensor(weight, want, tensor, stored, problems)
        bias = f"{weight.module}.bias"
        if bias in rest and bias not in known and not bool(rest[bias].mapped().any()):
            del rest[bias]
    if problems.found:
        raise ModelError(
            f"{where} does not match the quantization in its config.json. {problems}", param=FIELD
        )
    return {name: tensor for name, tensor in rest.items() if not CACHE_SCALES.search(name)}


def _uneven(weight: Weight) -> tuple[str, str] | None:
    """A problem of the shape with the format, or None."""
    *_, rows, columns = weight.shape
    scheme, told = weight.scheme, f"{weight.module} is {list(weight.shape)}"
    if columns % (scheme.group or 1):
        return f"of a shape that {FIELD}.group_size {scheme.group} does not divide", told
    if scheme.bits == 4 and columns % 8:
        return "of a number of columns that is no multiple of 8, which 4-bit formats hold together", told
    if scheme.format in PACKS_ROWS and rows % 8:
        return f"of a number of rows that is no multiple of 8, which {scheme.format} holds together", told
    return None


def _check_tensor(
    weight: Weight, want: Want, tensor: StoredTensor | None, stored: Files, problems: _Problems
) -> None:
    name = weight.module + want.ends
    if tensor is None:
        if not want.optional:
            problems.add("missing", name + _instead(weight, stored))
        return
    if tensor.dtype not in want.dtypes:
        known = " or ".join(str(dtype) for dtype in want.dtypes)
        problems.add("of the wrong dtype", f"{name} is {tensor.dtype}, should be {known}")
    elif not any(_fits(tensor.shape, shape) for shape in want.shapes):
        said = _sizes_said(weight.scheme) if want.grouped else ""
        told = f"{name} is {list(tensor.shape)}, should be {list(want.shapes[0])}{said}"
        problems.add("of the wrong shape", told)


def _sizes_said(scheme: Scheme) -> str:
    """The config setting behind the expected number of scales."""
    if scheme.group:
        return f" for {FIELD}.group_size {scheme.group}"
    if scheme.block is not None:
        field = "weight_block_size" if scheme.format == "block_fp8" else "block_structure"
        return f" for a {field} of {list(scheme.block)}"
    return ""


def _fits(shape: tuple[int, ...], wanted: tuple[int, ...]) -> bool:
    return len(shape) == len(wanted) and all(size in (-1, own) for size, own in zip(wanted, shape))


def _instead(weight: Weight, stored: Files) -> str:
    return " (the file has it unquantized)" if weight.slot.name in stored else ""


def put(
    model: Decoder,
    weights: Iterable[Weight],
    stored: Files,
    device: torch.device,
    progress: Callable[[int], None],
) -> None:
    """Replaces the modules of `weights` by quantized ones. Their plain parameters were filled before."""
    parts: dict[str, Quantized] = {}
    experts: dict[str, list[Quantized]] = {}
    modules = dict(model.named_modules())
    for weight in weights:
        whole = _read(weight, stored)
        for piece in weight.slot.pieces:
            own = _part(whole, piece).mapped(lambda tensor: tensor.to(device))
            if piece.at is None:
                parts[piece.param] = own
                continue
            gathered = experts.setdefault(piece.param, [])
            gathered.append(own)
            if len(gathered) == _experts_of(modules, piece):
                parts[piece.param] = stacked(experts.pop(piece.param))
        progress(sum(_bytes(weight, want, stored) for want in weight.wants))
    replace_parts(model, modules, parts)


def _bytes(weight: Weight, want: Want, stored: Files) -> int:
    tensor = stored.get(weight.module + want.ends)
    return 0 if tensor is None else tensor.stop - tensor.start


def _read(weight: Weight, stored: Files) -> Quantized:
    tensors = {
        want.ends: stored[weight.module + want.ends].mapped()
        for want in weight.wants
        if weight.module + want.ends in stored
    }
    for ends, tensor in tensors.items():
        if tensor.dtype == torch.float8_e4m3fn and _has_nan(tensor):
            raise ModelError(
                f"{weight.module}{ends} holds NaN: fetch the file again, or take a checkpoint that is sound",
                param=weight.module + ends,
            )
    try:
        return LAYOUTS[weight.scheme.format].read(weight.scheme, weight.shape, tensors)
    except ValueError as error:
        raise ModelError(f"{weight.module} cannot be read: {error}", param=FIELD) from error


def _has_nan(numbers: Tensor) -> bool:
    """Whether e4m3 numbers contain NaN (0x7f and 0xff), which kernels would read as numbers. Checked in pieces to limit
    memory."""
    pieces = numbers.view(torch.uint8).flatten().split(PIECE_BYTES)  # type: ignore[no-untyped-call]
    return any(bool(((piece & NAN) == NAN).any()) for piece in pieces)


def _part(whole: Quantized, piece: TensorMapping) -> Quantized:
    """The rows of a weight that map to one of our parameters."""
    if piece.into is None:
        return whole
    region = piece.into[-1] if piece.transposed else piece.into[0]
    assert isinstance(region, slice)
    return whole.rows(region)


def _experts_of(modules: dict[str, nn.Module], piece: TensorMapping) -> int:
    path, _, leaf = piece.param.rpartition(".")
    return len(getattr(modules[path], leaf))


def stacked(weights: list[Quantized], join: Callable[..., Tensor] = torch.stack) -> Quantized:
    """Stacks experts in the order of their slots, or concatenates rows. Zeros and orders that some weights lack are
    filled in."""
    if any(weight.zeros is not None for weight in weights):
        weights = [weight.with_zeros() for weight in weights]
    if any(weight.order is not None for weight in weights):
        weights = [weight.with_order() for weight in weights]
    if join is not torch.stack:
        weights = [weight.with_plain_scales() for weight in weights]
    first = weights[0]
    fields = {name: [weight.tensors[name] for weight in weights] for name in first.tensors}
    joined: dict[str, Any] = {name: join(tensors) for name, tensors in fields.items()}
    return replace(first, **joined)


def replace_parts(model: Decoder, modules: dict[str, nn.Module], parts: dict[str, Quantized]) -> None:
    for path, module in modules.items():
        if isinstance(module, Linear) and f"{path}.weight" in parts:
            _set(model, path, QuantizedLinear(parts[f"{path}.weight"], module.bias))
        elif isinstance(module, Experts) and f"{path}.gate" in parts:
            gate, up, down = (parts[f"{path}.{name}"] for name in ("gate", "up", "down"))
            _set(model, path, QuantizedExperts(module, gate, up, down))


def _set(model: nn.Module, path: str, part: nn.Module) -> None:
    owner, _, leaf = path.rpartition(".")
    setattr(model.get_submodule(owner), leaf, part)
