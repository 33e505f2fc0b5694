"""GGUF files written by llama.cpp's own Python package, and by hand."""

import struct
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from torch import Tensor

from rondo.base.storage.gguf import MAGIC, metadata_bytes
from rondo.models.files.gguf.blocks import TYPES

HALVES = {"Q4_K": (0, 2), "Q5_K": (0, 2), "Q6_K": (208,)}
"""Places of the fp16 numbers in a block, which are finite in a real file."""


def stored_as(numbers: np.ndarray, type_name: str) -> np.ndarray:
    """The tensor in that type. The package cannot quantize to the K types: random blocks take their place."""
    kind = gguf.GGMLQuantizationType[type_name]
    if type_name not in HALVES:
        return gguf.quants.quantize(numbers, kind)
    random = np.random.default_rng(numbers.size)
    block = TYPES[type_name]
    shape = (*numbers.shape[:-1], numbers.shape[-1] // block.numbers, block.size)
    raw = random.integers(0, 256, shape, dtype=np.uint8)
    for at in HALVES[type_name]:
        raw[..., at : at + 2] = (
            random.uniform(0.0005, 0.002, shape[:-1]).astype("<f2")[..., None].view(np.uint8)
        )
    return raw.reshape(*numbers.shape[:-1], -1)


def write_qwen3(
    file: Path,
    config: Mapping[str, Any],
    tensors: Iterable[tuple[str, Tensor]],
    types: Mapping[str, str],
    rest: str,
) -> dict[str, Tensor]:
    """Writes a Qwen3 checkpoint with matrices in the type that `types` gives for a part of their GGUF name, else
    `rest`. Returns the stored tensors under their Hugging Face names, dequantized by the package."""
    writer = gguf.GGUFWriter(file, "qwen3")
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_key_length(config["head_dim"])
    writer.add_value_length(config["head_dim"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_freq_base(config["rope_theta"])
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.QWEN3, config["num_hidden_layers"])
    read = {}
    for name, tensor in tensors:
        known, numbers = names.get_name(name, try_suffixes=(".weight",)), tensor.float().numpy()
        assert known is not None
        kind = (
            next((kind for part, kind in types.items() if part in known), rest) if tensor.dim() > 1 else "F32"
        )
        raw, number = stored_as(numbers, kind), gguf.GGMLQuantizationType[kind]
        writer.add_tensor(known, raw, raw_dtype=number)
        read[name] = torch.from_numpy(gguf.quants.dequantize(raw, number).copy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return read


def write_metadata(file: Path, metadata: Mapping[str, Any]) -> Path:
    """A file without tensors."""
    pairs = b"".join(metadata_bytes(key, value) for key, value in metadata.items())
    file.write_bytes(MAGIC + struct.pack("<IQQ", 3, 0, len(metadata)) + pairs)
    return file
