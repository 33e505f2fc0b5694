"""The definition of a decoder, for training and serving: embedding, layers, head."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from rondo.base.errors import ModelError
from rondo.models.architecture import Gqa, Layer, ModelConfig, Moe
from rondo.models.attend import Attend, SequenceLengths
from rondo.models.families import family_of
from rondo.models.files.slots import Slot
from rondo.models.heads.additions import added
from rondo.models.parts import (
    DenseMlp,
    GqaAttention,
    Linear,
    MlaAttention,
    MoeMlp,
    RopeTables,
    norm_like,
    normed_sum,
    take,
)
from rondo.ops import AttentionSpec, RopeSpec, rope_tables, token_logprobs, top1_hits


class Embed(nn.Module):
    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(config.vocab_size, config.hidden_size))
        self.scale = config.embed_scale

    def forward(self, tokens: Tensor) -> Tensor:
        x = nn.functional.embedding(tokens, self.weight)
        # Gemma was trained with the scale rounded to the weights' dtype.
        return x if self.scale is None else x * torch.tensor(self.scale, dtype=x.dtype, device=x.device)


class DecoderLayer(nn.Module):
    def __init__(self, config: ModelConfig, layer: Layer, index: int) -> None:
        super().__init__()
        attention = GqaAttention if isinstance(layer.attention, Gqa) else MlaAttention
        self.attention = attention(config, layer.attention, index)  # type: ignore[arg-type]
        self.mlp = MoeMlp(config, layer.mlp) if isinstance(layer.mlp, Moe) else DenseMlp(config, layer.mlp)
        before, after = layer.norms in ("before", "both"), layer.norms in ("after", "both")
        self.attention_norm = norm_like(config, config.hidden_size) if before else nn.Identity()
        self.mlp_norm = norm_like(config, config.hidden_size) if before else nn.Identity()
        self.attention_out_norm = norm_like(config, config.hidden_size) if after else nn.Identity()
        self.mlp_out_norm = norm_like(config, config.hidden_size) if after else nn.Identity()

    def forward(self, x: Tensor, ropes: RopeTables, attend: Attend, read: Tensor | None = None) -> Tensor:
        attended = self.attention(self.attention_norm(x), ropes, attend, read)
        x, normed = normed_sum(self.mlp_norm, take(x, read), self.attention_out_norm(attended))
        x = x + self.mlp_out_norm(added(self.mlp, normed, self.mlp(normed)))
        return x


Score = Callable[[Tensor, Tensor, float, bool], Tensor]
"""(logits [N, V], tokens [N], temperature, with entropy) -> log-probabilities [N]; with entropy [N, 2],
log-probabilities and entropies."""

ROWS_AT_ONCE = 1024
"""Rows of logits in memory at once in chunked computation."""


class Head(nn.Module):
    chunked = False
    """Whether logits are computed in chunks under autograd too, and recomputed in the backward pass."""
    value: nn.Module | None
    """Value head of a policy whose critic shares its layers: predicts the return."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.norm = norm_like(config, config.hidden_size)
        self.out = Linear(config.hidden_size, config.vocab_size, bias=False)
        self.softcap = config.logit_softcap
        self.register_module("value", None)
        self.score: Score = token_logprobs
        self.hits: Callable[[Tensor, Tensor], Tensor] = top1_hits

    def forward(self, x: Tensor) -> Tensor:
        return self.cap(self.out(self.norm(x)))

    def logprobs(
        self, x: Tensor, tokens: Tensor, temperature: float, entropy: bool = False, top1: bool = False
    ) -> Tensor:
        """x [N, H], tokens [N] -> [N]: the log-probability of each token given its row; with `entropy` [N, 2], beside
        it the entropy of the row's distribution; with `top1` a last column that is 1 for each row's most likely token.
        """
        if len(x) <= ROWS_AT_ONCE or (torch.is_grad_enabled() and not self.chunked):
            return self._scored(x, tokens, temperature, entropy, top1)
        scored = self._scored
        if torch.is_grad_enabled():
            scored = partial(checkpoint, scored, use_reentrant=False, preserve_rng_state=False)
        parts = zip(torch.split(x, ROWS_AT_ONCE), torch.split(tokens, ROWS_AT_ONCE), strict=True)
        return torch.cat([scored(*part, temperature, entropy, top1) for part in parts])

    def _scored(self, x: Tensor, tokens: Tensor, temperature: float, entropy: bool, top1: bool) -> Tensor:
        logits = self(x)
        scored = self.score(logits, tokens, temperature, entropy)
        if not top1:
            return scored
        columns = scored[:, None] if scored.dim() == 1 else scored
        return torch.cat([columns, self.hits(logits.detach(), tokens)[:, None]], 1)

    def values(self, x: Tensor) -> Tensor:
        """x [N, H] -> [N]: the predicted return after each row, from the value head."""
        assert self.value is not None, "the model has no value head"
        values: Tensor = self.value(self.norm(x))
        return values[:, 0].float()

    def cap(self, logits: Tensor) -> Tensor:
        return logits if self.softcap is None else self.softcap * torch.tanh(logits / self.softcap)


class ScoreHead(Head):
    """Head of a reward model: scores the text up to each token."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__(config)
        self.out = Linear(config.hidden_size, 1, bias=False)

    def logprobs(
        self, x: Tensor, tokens: Tensor, temperature: float, entropy: bool = False, top1: bool = False
    ) -> Tensor:
        """Scores in the place of a language model's log-probabilities; `tokens` and `temperature` are ignored."""
        if entropy or top1:
            raise ModelError("the scores of a reward model have no entropy and no most likely token")
        scores: Tensor = self(x)
        return scores[:, 0].float()


class MissingLayer(nn.Module):
    """Placeholder for a layer that is on another pipeline rank."""


class Decoder(nn.Module):
    """Tokens in, logits out, over a flat batch of several documents or requests without padding."""

    folder: Path | None = None
    """The folder that the model was loaded from."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        self.embed = Embed(config)
        self.layers = nn.ModuleList(DecoderLayer(config, layer, i) for i, layer in enumerate(config.layers))
        self.head = ScoreHead(config) if config.scores else Head(config)
        self.ropes = _distinct_ropes(config)
        self.tie()

    def tie(self) -> None:
        """Ties the output weight to the embedding, if the config does. Call it again after replacing either."""
        if self.config.tied:
            self.head.out.weight = self.embed.weight

    def forward(self, tokens: Tensor, positions: Tensor, attend: Attend) -> Tensor:
        """tokens [T], positions [T] -> logits [T, V]."""
        logits: Tensor = self.head(self.trunk(tokens, positions, attend))
        return logits

    def trunk(self, tokens: Tensor, positions: Tensor, attend: Attend, read: Tensor | None = None) -> Tensor:
        """The decoder without the head: [T, H], or its rows `read`. In the last layer the other rows are used for keys
        and values only."""
        return self.through(self.embed(tokens), positions, attend, read)

    def through(self, x: Tensor, positions: Tensor, attend: Attend, read: Tensor | None = None) -> Tensor:
        """The layers only: x [T, H] -> [T, H], or its rows `read`."""
        ropes = self.rope_tables(positions, attend, x.dtype)
        *before, last = self.own_layers()
        for layer in before:
            x = layer(x, ropes, attend)
        x = last(x, ropes, attend, read)
        return x

    def rope_tables(self, positions: Tensor, of: SequenceLengths, dtype: torch.dtype) -> RopeTables:
        return {
            spec: rope_tables(spec, positions, of.lengths if spec.by_length else None, dtype)
            for spec in self.ropes
        }

    def own_layers(self) -> list[nn.Module]:
        """The layers on this rank: all of them, except with pipeline parallelism."""
        return [layer for layer in self.layers if not isinstance(layer, MissingLayer)]

    def attention_specs(self) -> list[AttentionSpec]:
        return [layer.attention.spec for layer in self.own_layers()]  # type: ignore[union-attr, misc]

    def slots(self) -> list[Slot]:
        """The checkpoint tensors of the model, and the parameters that they map to."""
        return list(family_of(self.config.family).slots(self.config))

    def check_whole(self) -> None:
        """Raises if the model cannot be exported: only a part of it is here, or its weights are quantized."""
        if self.config.quantization is not None:
            raise ModelError(
                f"the weights are quantized ({self.config.quantization.method}), and are neither written nor pushed "
                "from here; `rondo model export` copies the model's folder",
                param="quantization_config",
            )

    @property
    def dtype(self) -> torch.dtype:
        return self._sample.dtype

    @property
    def device(self) -> torch.device:
        return self._sample.device

    @property
    def _sample(self) -> Tensor:
        return self.embed.weight if isinstance(self.embed, Embed) else next(self.parameters())


def _distinct_ropes(config: ModelConfig) -> tuple[RopeSpec, ...]:
    specs = (layer.attention.rope for layer in config.layers)
    return tuple(dict.fromkeys(spec for spec in specs if spec is not None))
