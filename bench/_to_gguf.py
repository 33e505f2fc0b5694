"""Writes a Qwen3 checkpoint as a GGUF file: run with the interpreter of llama.cpp's environment.

    python _to_gguf.py MODEL_FOLDER FILE.gguf [float32 | bfloat16 | q8_0 | q4_0]

Vectors are in fp32 in all, as llama.cpp wants them. With q4_0 the embedding, which is the head too, is q8_0. The
tokenizer goes with it. Its way of splitting text must be Qwen2's, as that of tokenizers made by Rondo is.
"""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gguf
import numpy as np

Kind = gguf.GGMLQuantizationType
TYPES = {
    "float32": (Kind.F32, Kind.F32, gguf.LlamaFileType.ALL_F32),
    "bfloat16": (Kind.BF16, Kind.BF16, gguf.LlamaFileType.MOSTLY_BF16),
    "q8_0": (Kind.Q8_0, Kind.Q8_0, gguf.LlamaFileType.MOSTLY_Q8_0),
    "q4_0": (Kind.Q4_0, Kind.Q8_0, gguf.LlamaFileType.MOSTLY_Q4_0),
}
"""Of the layers' weights, of the embedding and the head, and of the file."""


def convert(folder: Path, file: Path, dtype: str) -> None:
    config = json.loads((folder / "config.json").read_text())
    if config["model_type"] != "qwen3":
        sys.exit(f"only Qwen3 checkpoints are converted; {folder} is {config['model_type']!r}")
    writer = gguf.GGUFWriter(file, "qwen3")
    inner, outer, file_type = TYPES[dtype]
    writer.add_file_type(file_type)
    writer.add_quantization_version(gguf.GGML_QUANT_VERSION)
    add_shape(writer, config)
    add_tokenizer(writer, folder, config)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.QWEN3, config["num_hidden_layers"])
    for name, tensor in tensors(folder):
        known = names.get_name(name, try_suffixes=(".weight",))
        if known is None:
            sys.exit(f"GGUF has no name for {name}")
        kind = inner if known.startswith("blk.") else outer
        if tensor.ndim > 1 and kind != Kind.F32:
            writer.add_tensor(known, gguf.quants.quantize(tensor, kind), raw_dtype=kind)
        else:
            writer.add_tensor(known, tensor)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def add_shape(writer: gguf.GGUFWriter, config: dict[str, Any]) -> None:
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


def add_tokenizer(writer: gguf.GGUFWriter, folder: Path, config: dict[str, Any]) -> None:
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    tokens = dict(tokenizer["model"]["vocab"])
    kinds = dict.fromkeys(tokens.values(), gguf.TokenType.NORMAL)
    for added in tokenizer["added_tokens"]:
        tokens[added["content"]] = added["id"]
        kinds[added["id"]] = gguf.TokenType.CONTROL
    by_id = {i: token for token, i in tokens.items()}
    size = config["vocab_size"]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen2")
    writer.add_token_list([by_id.get(i, f"<unused {i}>") for i in range(size)])
    writer.add_token_types([kinds.get(i, gguf.TokenType.UNUSED) for i in range(size)])
    writer.add_token_merges([m if isinstance(m, str) else " ".join(m) for m in tokenizer["model"]["merges"]])
    ends = config["eos_token_id"]
    writer.add_eos_token_id(ends if isinstance(ends, int) else ends[0])
    writer.add_add_bos_token(False)


def tensors(folder: Path) -> Iterator[tuple[str, np.ndarray]]:
    """In fp32. Read by hand: NumPy, and so its reader of safetensors, knows no bf16."""
    for file in sorted(folder.glob("*.safetensors")):
        with file.open("rb") as stored:
            size = int.from_bytes(stored.read(8), "little")
            header = json.loads(stored.read(size))
        data = np.memmap(file, np.uint8, "r", 8 + size)
        for name, entry in header.items():
            if name != "__metadata__":
                begin, end = entry["data_offsets"]
                yield name, widened(data[begin:end], entry["dtype"]).reshape(entry["shape"])


def widened(raw: np.ndarray, dtype: str) -> np.ndarray:
    if dtype == "BF16":
        return (raw.view(np.uint16).astype(np.uint32) << 16).view(np.float32)
    if dtype == "F32":
        return np.array(raw.view(np.float32))
    sys.exit(f"only F32 and BF16 tensors are converted, not {dtype}")


if __name__ == "__main__":
    convert(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3] if len(sys.argv) > 3 else "float32")
