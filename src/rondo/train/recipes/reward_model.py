"""Inference with a reward model: texts to scores."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from rondo import models
from rondo.base.errors import ModelError
from rondo.data.batching.balance import balanced
from rondo.data.batching.packing import Document, Tree, pack
from rondo.models import Decoder, ModelConfig
from rondo.models.store import resolve
from rondo.parallel.config import MemoryConfig
from rondo.text.tokenizer import Tokenizer
from rondo.train.learner.pipelined import passes_over
from rondo.train.learner.shared_prefix import shares_prefixes
from rondo.train.recipes.reward import scored
from rondo.train.recipes.sft import through_end

if TYPE_CHECKING:
    from rondo.parallel.ranks.mesh import Mesh

Conversation = Sequence[Mapping[str, Any]]


class RewardModel:
    """Reward model: `RewardModel.load("judge").score_chats([conversation, ...])`. Sequences are packed into rows of up
    to `tokens_per_row` tokens.
    """

    def __init__(
        self,
        model: Decoder,
        tokenizer: Tokenizer,
        tokens_per_row: int = 16384,
        mesh: Mesh | None = None,
    ) -> None:
        """With a mesh, every rank scores the same sequences, and the model and its passes are divided."""
        if not model.config.scores:
            raise ModelError(
                "this is a language model: `rondo train reward` makes a reward model of it", param="model"
            )
        self.model = model
        self.tokenizer = tokenizer
        self._mesh = mesh
        self._share = shares_prefixes(model.attention_specs(), mesh)
        self._passes = passes_over(model, mesh, MemoryConfig())
        self._tokens_per_row = tokens_per_row

    @classmethod
    def load(
        cls,
        model: str | Path,
        dtype: torch.dtype | None = None,
        device: str | torch.device = "cpu",
        tokens_per_row: int = 16384,
        mesh_for: Callable[[ModelConfig], Mesh | None] | None = None,
    ) -> RewardModel:
        """Loads a model by folder, name or hash of a job. `mesh_for` divides it."""
        folder = resolve(model)
        found = models.load(folder, dtype, device)
        mesh = mesh_for(found.config) if mesh_for else None
        return cls(found, Tokenizer.load(folder), tokens_per_row, mesh)

    def score(self, sequences: Sequence[Sequence[int]]) -> list[float]:
        """Scores at the end of each sequence of tokens."""
        return self._scores([scored(tokens, number=i) for i, tokens in enumerate(sequences)])

    def score_groups(
        self, groups: Sequence[tuple[Sequence[int], Sequence[Sequence[int]]]]
    ) -> list[list[float]]:
        """Scores of the answers to each prompt; a prompt is computed once for all of its answers."""
        numbers = count()
        trees = [
            Tree(prompt, [scored(answer, number=next(numbers)) for answer in answers])
            for prompt, answers in groups
        ]
        items = [item for tree in trees for item in ([tree] if self._share else tree.apart())]
        flat = iter(self._scores(items))
        return [[next(flat) for _ in answers] for _, answers in groups]

    def score_texts(self, texts: Sequence[str]) -> list[float]:
        return self.score(self.tokenizer.encode_batch(list(texts)))

    def score_chats(self, conversations: Sequence[Conversation]) -> list[float]:
        """Scores of conversations, rendered by the chat template up to the end of the last turn, as in training."""
        return self.score([self._tokens(conversation) for conversation in conversations])

    def _tokens(self, conversation: Conversation) -> list[int]:
        ids = self.tokenizer.encode(
            self.tokenizer.render([dict(message) for message in conversation], add_generation_prompt=False),
            add_special=False,
        )
        return ids[: through_end(ids, self.tokenizer.eos_ids)]

    def _scores(self, items: Sequence[Document | Tree]) -> list[float]:
        mesh = self._mesh
        own = balanced(items, 1 if mesh is None else mesh.degrees.dp)[0 if mesh is None else mesh.dp_rank]
        rows = pack(own, self._tokens_per_row)
        found = [
            (int(number), float(score))
            for row, scores in zip(rows, self._passes.logprobs(rows, 1.0), strict=True)
            for number, score in zip(row.facts["number"], scores.tolist(), strict=True)
        ]
        parts = [found] if mesh is None else mesh.said(found)
        return [score for _, score in sorted(pair for part in parts for pair in part)]
