"""A model of the size reinforcement learning is tried on: about 4M parameters, random weights, a real tokenizer."""

import json
import random
from pathlib import Path
from typing import Any

import torch

from rondo.models import new, save
from rondo.text.bpe import train_bpe

SHAPE: dict[str, Any] = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "hidden_size": 256,
    "intermediate_size": 768,
    "num_hidden_layers": 5,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 32,
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
    "tie_word_embeddings": True,
    "hidden_act": "silu",
    "attention_bias": False,
    "initializer_range": 0.02,
}
TINY: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
}
TINY |= {"num_key_value_heads": 1, "head_dim": 32}
"""What differs in one that takes next to no time."""
LARGER: dict[str, Any] = {
    "hidden_size": 512,
    "intermediate_size": 1536,
    "num_hidden_layers": 8,
    "head_dim": 64,
}
"""What differs in a model of about 25M parameters."""
QWEN3_06B: dict[str, Any] = {
    "hidden_size": 1024,
    "intermediate_size": 3072,
    "num_hidden_layers": 28,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "max_position_embeddings": 40960,
    "vocab_size": 151936,
}
"""What differs in the shape of Qwen3 0.6B."""
TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def write_small_model(folder: Path, dtype: torch.dtype = torch.float32, **changes: Any) -> Path:
    """`changes` are other values for keys of its `config.json`."""
    rng = random.Random(0)

    def word() -> str:
        return "".join(rng.choice("abcdefghij") for _ in range(rng.randrange(2, 7)))

    tokenizer = train_bpe(
        (" ".join(word() for _ in range(50)) for _ in range(100)), 512, chat_template=TEMPLATE
    )
    shape = SHAPE | {"vocab_size": tokenizer.vocab_size, "eos_token_id": tokenizer.eos_ids[0]} | changes
    save(new(shape, seed=0).to(dtype), folder)
    tokenizer.save(folder)
    return folder


def write_qwen3_06b(folder: Path) -> Path:
    """In bf16, with a tokenizer as large as its own: made-up merges, which take as long to read."""
    write_small_model(folder, torch.bfloat16, **QWEN3_06B)
    rng, file = random.Random(0), folder / "tokenizer.json"
    spec = json.loads(file.read_text())
    vocab, merges = spec["model"]["vocab"], spec["model"]["merges"]
    pieces = [piece for piece in vocab if piece not in {token["content"] for token in spec["added_tokens"]}]
    free = max(*vocab.values(), *(token["id"] for token in spec["added_tokens"])) + 1
    while free < QWEN3_06B["vocab_size"]:
        left, right = rng.choice(pieces), rng.choice(pieces)
        if left + right not in vocab and len(left + right) < 16:
            vocab[left + right], free = free, free + 1
            merges.append([left, right])
            pieces.append(left + right)
    file.write_text(json.dumps(spec))
    return folder
