"""Quantized checkpoints as other programs write them: each format by its public description, loop by loop.

A writer makes of one weight [N, K] the tensors of its module, and the weight that these stand for.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from support.families import reference

Written = tuple[dict[str, Tensor], Tensor]
Writer = Callable[[Tensor], Written]
GROUP = 32


def affine(weight: Tensor, group: int, symmetric: bool) -> tuple[Tensor, Tensor, Tensor]:
    """codes [N, K] of 0 to 15, scales and zeros [N, K / group]; scales are fp16 numbers."""
    parts = weight.unflatten(1, (-1, group))
    if symmetric:
        scales, zeros = parts.abs().amax(-1) / 7, torch.full(parts.shape[:2], 8.0)
    else:
        low, high = parts.amin(-1).clamp(max=0), parts.amax(-1).clamp(min=0)
        scales = (high - low) / 15
        zeros = (-low / scales).round().clamp(1, 15)
    scales = scales.half().float()
    codes = (parts / scales[..., None]).round() + zeros[..., None]
    return codes.clamp(0, 15).flatten(1), scales, zeros


def dequantized(codes: Tensor, scales: Tensor, zeros: Tensor, groups: Tensor) -> Tensor:
    """`groups` [K] says the group of each column."""
    return (codes - zeros[:, groups]) * scales[:, groups]


def words(codes: np.ndarray, axis: int, order: tuple[int, ...] = tuple(range(8))) -> Tensor:
    """int32, eight numbers of 4 bits each, along an axis; `order[i]` is the one that lies at bit 4 i."""
    codes = np.moveaxis(codes.astype(np.uint32), axis, -1)
    packed = np.zeros((*codes.shape[:-1], codes.shape[-1] // 8), dtype=np.uint32)
    for column in range(packed.shape[-1]):
        for place in range(8):
            packed[..., column] |= codes[..., column * 8 + order[place]] << np.uint32(4 * place)
    return torch.from_numpy(np.ascontiguousarray(np.moveaxis(packed, -1, axis)).view(np.int32).copy())


def gptq(
    weight: Tensor, *, group: int = GROUP, symmetric: bool = True, ordered: bool = False, v2: bool = False
) -> Written:
    """As AutoGPTQ's QuantLinear.pack: qweight along the inputs, zeros less one in the first format."""
    columns = weight.shape[1]
    order = weight.square().sum(0).argsort(descending=True) if ordered else torch.arange(columns)
    in_order, scales, zeros = affine(weight[:, order], group, symmetric)
    codes, groups = torch.empty_like(in_order), torch.empty(columns, dtype=torch.int64)
    codes[:, order] = in_order
    groups[order] = torch.arange(columns) // group
    stored = zeros if v2 else zeros - 1
    tensors = {
        "qweight": words(codes.T.numpy(), 0),
        "qzeros": words(stored.T.numpy(), 1),
        "scales": scales.T.half().contiguous(),
        "g_idx": groups.int(),
    }
    return tensors, dequantized(codes, scales, zeros, groups)


def awq(weight: Tensor, *, group: int = GROUP) -> Written:
    """As AutoAWQ's WQLinear_GEMM.from_linear."""
    codes, scales, zeros = affine(weight, group, symmetric=False)
    order = (0, 2, 4, 6, 1, 3, 5, 7)
    tensors = {
        "qweight": words(codes.T.numpy(), 1, order),
        "qzeros": words(zeros.T.numpy(), 1, order),
        "scales": scales.T.half().contiguous(),
    }
    return tensors, dequantized(codes, scales, zeros, torch.arange(weight.shape[1]) // group)


def packed(weight: Tensor, *, group: int = GROUP, symmetric: bool = True, bits: int = 4) -> Written:
    """With the packing of the compressed-tensors library itself."""
    from compressed_tensors.compressors.pack_quantized.helpers import pack_to_int32

    if bits == 8:
        scales = weight.unflatten(1, (-1, group)).abs().amax(-1) / 127
        signed = (weight / scales.repeat_interleave(group, 1)).round().to(torch.int8)
        tensors = {"weight_packed": pack_to_int32(signed, 8), "weight_scale": scales}
        return tensors | _shape(weight), signed * scales.repeat_interleave(group, 1)
    codes, scales, zeros = affine(weight, group, symmetric)
    tensors = {
        "weight_packed": pack_to_int32((codes - 8).to(torch.int8), 4),
        "weight_scale": scales,
        **_shape(weight),
    }
    if not symmetric:
        tensors["weight_zero_point"] = pack_to_int32((zeros - 8).to(torch.int8), 4, packed_dim=0)
    return tensors, dequantized(codes, scales, zeros, torch.arange(weight.shape[1]) // group)


def _shape(weight: Tensor) -> dict[str, Tensor]:
    return {"weight_shape": torch.tensor(weight.shape)}


def int8(weight: Tensor) -> Written:
    scales = weight.abs().amax(1, keepdim=True) / 127
    codes = (weight / scales).round().to(torch.int8)
    return {"weight": codes, "weight_scale": scales}, codes * scales


def fp8(weight: Tensor, *, per_row: bool = True) -> Written:
    largest = weight.abs().amax(1, keepdim=True) if per_row else weight.abs().amax()[None]
    scales = largest / 448
    codes = (weight / scales).to(torch.float8_e4m3fn)
    return {"weight": codes, "weight_scale": scales}, codes.float() * scales


def fp8_blocks(weight: Tensor, *, block: int = GROUP) -> Written:
    """DeepSeek's: a scale for each square of columns and rows, the last ones cut off where the weight ends."""
    rows, columns = (-(-size // block) for size in weight.shape)
    codes, scales = torch.empty(weight.shape, dtype=torch.float8_e4m3fn), torch.empty(rows, columns)
    wide = torch.empty_like(weight)
    for i in range(rows):
        for j in range(columns):
            at = slice(i * block, (i + 1) * block), slice(j * block, (j + 1) * block)
            scales[i, j] = weight[at].abs().amax() / 448
            codes[at] = (weight[at] / scales[i, j]).to(torch.float8_e4m3fn)
            wide[at] = codes[at].float() * scales[i, j]
    return {"weight": codes, "weight_scale_inv": scales}, wide


def compressed(
    form: str, weights: dict[str, Any], activations: dict[str, Any] | None = None
) -> dict[str, Any]:
    group = {"targets": ["Linear"], "weights": weights, "input_activations": activations}
    return {
        "quant_method": "compressed-tensors",
        "format": form,
        "quantization_status": "compressed",
        "config_groups": {"group_0": group},
        "ignore": ["lm_head"],
    }


GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": GROUP, "desc_act": False, "sym": True}
AWQ = {"quant_method": "awq", "bits": 4, "group_size": GROUP, "version": "gemm", "zero_point": True}
INT8 = {"num_bits": 8, "type": "int", "symmetric": True, "strategy": "channel"}
INT8_TOKENS = {"num_bits": 8, "type": "int", "symmetric": True, "strategy": "token", "dynamic": True}


def is_weight(name: str, tensor: Tensor) -> bool:
    """Of a linear module inside a layer, experts' included, but no router."""
    linear = name.endswith(".weight") and tensor.dim() == 2 and ".layers." in name
    return linear and not name.endswith((".gate.weight", ".router.weight"))


def checkpoint(
    name: str, folder: Path, writer: Writer, settings: dict[str, Any], ignored: tuple[str, ...] = ()
) -> Any:
    """Writes a family's small model quantized; returns transformers' model of the weights it stands for."""
    theirs = reference(name)
    theirs.save_pretrained(folder)
    plain = load_file(folder / "model.safetensors")
    stored, wide = {}, {}
    for key, tensor in plain.items():
        if not is_weight(key, tensor) or any(part in key for part in ignored):
            stored[key] = wide[key] = tensor
            continue
        tensors, wide[key] = writer(tensor)
        stored |= {f"{key.removesuffix('.weight')}.{end}": value for end, value in tensors.items()}
    save_file({key: tensor.contiguous() for key, tensor in wide.items()}, folder / "model.safetensors")
    theirs = type(theirs).from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()
    save_file({key: tensor.contiguous() for key, tensor in stored.items()}, folder / "model.safetensors")
    configure(folder, quantization_config=settings)
    return theirs


def configure(folder: Path, **changes: Any) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def change(folder: Path, edit: Callable[[dict[str, Tensor]], Any]) -> None:
    tensors = load_file(folder / "model.safetensors")
    edit(tensors)
    save_file(tensors, folder / "model.safetensors")
