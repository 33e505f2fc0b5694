"""Writes a Qwen3 checkpoint as an fp32 GGUF file: run with the interpreter of llama.cpp's environment.

    python _to_gguf.py MODEL_FOLDER FILE.gguf

The tokenizer goes with it. Its way of splitting text must be Qwen2's, as that of tokenizers made by Rondo is.
"""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from safetensors import safe_open


def convert(folder: Path, file: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    if config["model_type"] != "qwen3":
        sys.exit(f"only Qwen3 checkpoints are converted; {folder} is {config['model_type']!r}")
    writer = gguf.GGUFWriter(file, "qwen3")
    add_shape(writer, config)
    add_tokenizer(writer, folder, config)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.QWEN3, config["num_hidden_layers"])
    for name, tensor in tensors(folder):
        known = names.get_name(name, try_suffixes=(".weight",))
        if known is None:
            sys.exit(f"GGUF has no name for {name}")
        writer.add_tensor(known, np.ascontiguousarray(tensor, dtype=np.float32))
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
    writer.add_file_type(gguf.LlamaFileType.ALL_F32)


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
    for file in sorted(folder.glob("*.safetensors")):
        with safe_open(file, "numpy") as stored:
            for name in stored.keys():  # noqa: SIM118  (the file is no dictionary)
                yield name, stored.get_tensor(name)


if __name__ == "__main__":
    convert(Path(sys.argv[1]), Path(sys.argv[2]))
