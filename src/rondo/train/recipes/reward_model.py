"""Inference with a reward model: texts to scores."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import torch

from rondo import models
from rondo.base.errors import ModelError
from rondo.data.batching.packing import Document, Tree, pack
from rondo.models import Decoder
from rondo.models.store import resolve
from rondo.text.tokenizer import Tokenizer
from rondo.train.learner.passes import Passes
from rondo.train.learner.shared_prefix import shares_prefixes
from rondo.train.recipes.reward import scored
from rondo.train.recipes.sft import through_end

Conversation = Sequence[Mapping[str, Any]]


class RewardModel:
    """Reward model: `RewardModel.load("judge").score_chats([conversation, ...])`. Sequences are packed into rows of up
    to `tokens_per_row` tokens.
    """

    def __init__(self, model: Decoder, tokenizer: Tokenizer, tokens_per_row: int = 16384) -> None:
        if not model.config.scores:
            raise ModelError(
                "this is a language model: `rondo train reward` makes a reward model of it", param="model"
            )
        self.model = model
        self.tokenizer = tokenizer
        self._passes = Passes(model)
        self._tokens_per_row = tokens_per_row

    @classmethod
    def load(
        cls,
        model: str | Path,
        dtype: torch.dtype | None = None,
        device: str | torch.device = "cpu",
        tokens_per_row: int = 16384,
    ) -> RewardModel:
        """Loads a model by folder, name or hash of a job."""
        folder = resolve(model)
        return cls(models.load(folder, dtype, device), Tokenizer.load(folder), tokens_per_row)

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
        share = shares_prefixes(self.model.attention_specs())
        flat = iter(self._scores([item for tree in trees for item in ([tree] if share else tree.apart())]))
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
        rows = pack(items, self._tokens_per_row)
        found = self._passes.logprobs(rows, 1.0)
        if not rows:
            return []
        numbers = np.concatenate([row.facts["number"] for row in rows]).astype(np.int64)
        scores = np.empty(len(numbers))
        scores[numbers] = torch.cat(found).cpu().numpy()
        return [float(score) for score in scores]
