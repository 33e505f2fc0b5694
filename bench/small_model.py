"""A model of the size reinforcement learning is tried on: about 4M parameters, random weights, a real tokenizer."""

import random
from pathlib import Path
from typing import Any

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
LARGER: dict[str, Any] = {
    "hidden_size": 512,
    "intermediate_size": 1536,
    "num_hidden_layers": 8,
    "head_dim": 64,
}
"""What differs in a model of about 25M parameters."""
TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def write_small_model(folder: Path, **changes: Any) -> Path:
    """`changes` are other values for keys of its `config.json`."""
    rng = random.Random(0)

    def word() -> str:
        return "".join(rng.choice("abcdefghij") for _ in range(rng.randrange(2, 7)))

    tokenizer = train_bpe(
        (" ".join(word() for _ in range(50)) for _ in range(100)), 512, chat_template=TEMPLATE
    )
    shape = SHAPE | {"vocab_size": tokenizer.vocab_size, "eos_token_id": tokenizer.eos_ids[0]} | changes
    save(new(shape, seed=0), folder)
    tokenizer.save(folder)
    return folder
