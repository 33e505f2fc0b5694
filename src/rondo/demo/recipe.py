"""Sizes of the demo: a model of 1.7 M parameters and its training data, small enough for two slow cores."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rondo.demo.corpus import stories
from rondo.rl.config import RlConfig
from rondo.rl.loop_config import EvalConfig
from rondo.text.bpe import train_bpe
from rondo.text.tokenizer import Tokenizer
from rondo.train.config import EvaluateConfig, TrainConfig

VOCAB_SIZE = 512
SAVE_EVERY = 25
"""Steps between checkpoints."""


@dataclass(frozen=True)
class DemoRecipe:
    hidden: int = 256
    layers: int = 2
    stories: int = 3000
    sums: int = 0
    """Number of texts with sums, in addition to the stories."""
    sft_examples: int = 20_000
    pretrain_steps: int = 30
    sft_steps: int = 300
    """Maximum; SFT ends at the success rate `sft_until`."""
    sft_until: float = 0.12
    sft_check_every: int = 2
    rl_steps: int = 200
    """Maximum; RL ends at the success rate `rl_until`."""
    rl_until: float = 0.97
    rl_check_every: int = 10
    prompts_per_step: int = 64
    samples_per_prompt: int = 8
    eval_prompts: int = 256

    def pretraining(self, seed: int) -> TrainConfig:
        return TrainConfig(
            save_every=SAVE_EVERY,
            steps=self.pretrain_steps,
            lr=2e-3,
            warmup=10,
            decay="constant",
            betas=(0.9, 0.98),
            weight_decay=0.01,
            tokens_per_step=4096,
            tokens_per_microbatch=8192,
            max_length=256,
            seed=seed,
        )

    def tuning(self, seed: int) -> TrainConfig:
        """SFT that ends at a success rate, which the demo measures as `evaluate/reward/correct`."""
        every = EvaluateConfig(every=self.sft_check_every, held_out=0.0)
        until = f"evaluate/reward/correct>={self.sft_until}"
        given = {"steps": self.sft_steps, "until": until, "evaluate": every}
        return self.pretraining(seed).model_copy(update=given)

    def reinforcement(self, task: str, seed: int) -> RlConfig:
        return RlConfig(
            task=task,
            steps=self.rl_steps,
            lr=5e-4,
            warmup=5,
            decay="linear",
            lr_end=0.1,
            betas=(0.9, 0.95),
            prompts_per_step=self.prompts_per_step,
            samples_per_prompt=self.samples_per_prompt,
            block_size=1,
            eval_prompts=self.eval_prompts,
            evaluate=EvalConfig(every=self.rl_check_every),
            until=f"held_out/reward/correct>={self.rl_until}",
            save_every=SAVE_EVERY,
            seed=seed,
        )


RECIPES = {"add": DemoRecipe(stories=1000, sums=2000, pretrain_steps=60)}
"""Recipes that differ from the default, by task: after pretraining on sums, fewer steps are necessary for addition."""


def recipe_for(task: str) -> DemoRecipe:
    return RECIPES.get(task, DemoRecipe())


QUICK = DemoRecipe(
    hidden=64,
    stories=200,
    sft_examples=500,
    pretrain_steps=2,
    sft_steps=8,
    sft_check_every=4,
    rl_steps=4,
    rl_check_every=2,
    prompts_per_step=8,
    eval_prompts=32,
)
"""Recipe that runs all phases, too briefly for a useful model."""


def tokenizer_for(seed: int) -> Tokenizer:
    """A byte-level BPE tokenizer trained on lower-case text, so that each capital letter of a task's word is one
    token.
    """
    texts = [record["text"].lower() for record in stories(seed, 1000)]
    frame = "user\nassistant\nsystem\nreverse\nadd\nsort\ncountdown\n and to "
    return train_bpe([*texts, *[frame] * len(texts)], VOCAB_SIZE)


def hf_config(recipe: DemoRecipe, tokenizer: Tokenizer) -> Mapping[str, Any]:
    heads = recipe.hidden // 32
    return {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "vocab_size": VOCAB_SIZE,
        "hidden_size": recipe.hidden,
        "intermediate_size": 3 * recipe.hidden,
        "num_hidden_layers": recipe.layers,
        "num_attention_heads": heads,
        "num_key_value_heads": heads // 2,
        "head_dim": 32,
        "hidden_act": "silu",
        "max_position_embeddings": 512,
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "attention_bias": False,
        "tie_word_embeddings": True,
        # 1 / sqrt(hidden): trains far faster than the usual 0.02 at this width
        "initializer_range": round(recipe.hidden**-0.5, 4),
        "eos_token_id": list(tokenizer.eos_ids),
        "pad_token_id": tokenizer.pad_id,
        "torch_dtype": "float32",
    }
