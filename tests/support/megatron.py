"""The same work for the native learner and for the one over Megatron-Core, and what each says and leaves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from rondo import models
from rondo.data.batching.packing import Document, PackedRow, Tree, pack
from rondo.models import Decoder
from rondo.parallel.config import LayoutConfig
from rondo.parallel.ranks.mesh import Mesh, join
from rondo.parallel.ranks.world import read_world
from rondo.train.config import OptimConfig
from rondo.train.learner.learner import Learner, Metrics
from rondo.train.losses.policy import PolicyLoss
from rondo.train.losses.sums import Loss, cross_entropy
from rondo.train.megatron.learner import MegatronLearner
from support.tiny import tiny_config

# With an epsilon of 1 a first step of AdamW is the gradient, but for what is large in it.
PLAIN = OptimConfig(lr=1.0, eps=1.0, weight_decay=0.0, clip=0.0)
CLIPPED = OptimConfig(lr=1e-2, eps=1e-3, clip=0.05, ema=0.5, export="average")
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
MODELS: dict[str, dict[str, Any]] = {
    "qwen3": {},
    "qwen2": {
        "architectures": ["Qwen2ForCausalLM"],
        "model_type": "qwen2",
        "vocab_size": 301,
        "tie_word_embeddings": False,
    },
    "llama": {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "num_key_value_heads": 4,
        "rope_scaling": LLAMA3,
        "rms_norm_eps": 1e-5,
        "tie_word_embeddings": False,
    },
}


@dataclass(frozen=True)
class Outcome:
    metrics: list[dict[str, float]]
    logprobs: list[Tensor]
    weights: dict[str, Tensor]
    """Of the model that it leaves, by Hugging Face's names."""


def rows_of(seed: int) -> list[PackedRow]:
    """Documents of several lengths in one row, and prompts with several answers."""
    draw = torch.Generator().manual_seed(seed)

    def document(size: int) -> Document:
        tokens = torch.randint(0, 300, (size,), generator=draw).tolist()
        columns = {
            name: torch.randn(size, generator=draw).tolist()
            for name in ("advantages", "sampler_logprobs", "reference_logprobs")
        }
        columns["sampler_logprobs"] = [-6 + 0.1 * x for x in columns["sampler_logprobs"]]
        return Document(tokens, torch.randint(0, 3, (size,), generator=draw).tolist(), columns)

    prompt = document(11).tokens
    items: list[Document | Tree] = [document(size) for size in (30, 17, 9, 23, 14)]
    return pack([*items, Tree(prompt, [document(size) for size in (8, 12, 5)])], 64)


@dataclass
class Share:
    """A learner with the rows that its rank has of each batch."""

    learner: Learner
    rank: int = 0
    ranks: int = 1

    def rows(self, seed: int) -> list[PackedRow]:
        return rows_of(seed)[self.rank :: self.ranks]

    def step(self, seed: int, loss: Loss, temperature: float = 1.0) -> Metrics:
        return (
            self.learner.forward_backward(self.rows(seed), loss, temperature=temperature)
            | self.learner.optim_step()
        )

    def outcome(self, metrics: list[Metrics], seed: int) -> Outcome:
        """The model that it leaves; an average of its weights, where one is kept."""
        with self.learner.as_left():
            logprobs = [
                torch.from_numpy(found) for found in self.learner.logprobs(self.rows(seed), temperature=0.7)
            ]
            weights = {name: tensor.detach().clone() for name, tensor in self.learner.shards()}
        return Outcome(metrics, logprobs, weights)


def before(share: Share) -> Outcome:
    return share.outcome([], 0)


def one_step(share: Share) -> Outcome:
    """Its weights tell the gradient."""
    return share.outcome([share.step(0, cross_entropy)], 0)


def two_steps(share: Share) -> Outcome:
    """Of RL, with clipped gradients."""
    loss = PolicyLoss(kl=0.1, entropy=0.1)
    return share.outcome([share.step(seed, loss, 0.8) for seed in (1, 2)], 3)


def resumed(share: Share, folder: Path) -> Outcome:
    """A step more, from what any learner has saved after two."""
    share.learner.load(folder, 2)
    return share.outcome([share.step(4, cross_entropy)], 4)


def model_of(name: str) -> Decoder:
    return models.new(tiny_config(**MODELS[name]), seed=3)


def alone(name: str, folder: Path, **changes: Any) -> dict[str, Outcome]:
    """What the native learner makes of it; it leaves a checkpoint."""
    folder.mkdir(parents=True)
    plain, clipped = PLAIN.model_copy(update=changes), CLIPPED.model_copy(update=changes)
    found = {
        "before": before(Share(Learner(model_of(name), plain))),
        "one": one_step(Share(Learner(model_of(name), plain))),
    }
    learner = Learner(model_of(name), clipped)
    found["two"] = two_steps(Share(learner))
    learner.save(folder)
    found["resumed"] = resumed(Share(Learner(model_of(name), clipped)), folder)
    return found


Case = tuple[Mapping[str, int], Mapping[str, Any]]
"""A layout, and changes of the optimizer's settings."""


def on_ranks(cases: Sequence[Case], saved: Path, folder: Path) -> list[dict[str, dict[str, Outcome]]]:
    """What the learner over Megatron-Core makes of it: for each case and model, on every rank. It goes on from the
    native one's checkpoint, and leaves its own and an export."""
    return [_on_rank(*case, saved, folder / str(i)) for i, case in enumerate(cases)]


def _on_rank(
    layout: Mapping[str, int], changes: Mapping[str, Any], saved: Path, folder: Path
) -> dict[str, dict[str, Outcome]]:
    from megatron.core import parallel_state

    found = {}
    for name in MODELS:
        model, world = model_of(name), read_world()
        mesh = (
            join(LayoutConfig(**layout), world, model.config, torch.device("cpu")) if world.size > 1 else None
        )
        own = folder / name
        own.mkdir(parents=True, exist_ok=True)

        def share(config: OptimConfig, model: Decoder = model, mesh: Mesh | None = mesh) -> Share:
            learner = MegatronLearner(model, config.model_copy(update=changes), mesh)
            return Share(learner) if mesh is None else Share(learner, mesh.dp_rank, mesh.degrees.dp)

        found[name] = {"before": before(share(PLAIN)), "one": one_step(share(PLAIN))}
        long = share(CLIPPED)
        found[name]["two"] = two_steps(long)
        long.learner.save(own)
        with long.learner.as_left():
            long.learner.export_hf(own / "export")
        found[name]["resumed"] = resumed(share(CLIPPED), saved / name)
    parallel_state.destroy_model_parallel()
    return found


def sharded_state(layout: dict[str, int]) -> tuple[int, int]:
    """Numbers of this rank's moments, and of its weights."""
    from megatron.core import parallel_state

    model = model_of("qwen3")
    mesh = join(LayoutConfig(**layout), read_world(), model.config, torch.device("cpu"))
    learner = MegatronLearner(model, PLAIN, mesh)
    Share(learner, mesh.dp_rank, 2).step(0, cross_entropy)
    parallel_state.destroy_model_parallel()
    moments = sum(state["exp_avg"].numel() for state in learner.optimizer.state.values())
    return moments, sum(p.numel() for p in learner._part.module.parameters())
