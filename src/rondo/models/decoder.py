"""The one definition of a decoder, for training and for serving: embed, layers, head."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from rondo.base.errors import ModelError
from rondo.models.additions import added
from rondo.models.architecture import Gqa, Layer, ModelConfig, Moe
from rondo.models.attend import Attend, Lengths
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
from rondo.ops import AttentionSpec, RopeSpec, rope_tables

if TYPE_CHECKING:
    from rondo.models.mapping import Slot


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


class Head(nn.Module):
    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.norm = norm_like(config, config.hidden_size)
        self.out = Linear(config.hidden_size, config.vocab_size, bias=False)
        self.softcap = config.logit_softcap

    def forward(self, x: Tensor) -> Tensor:
        return self.cap(self.out(self.norm(x)))

    def cap(self, logits: Tensor) -> Tensor:
        return logits if self.softcap is None else self.softcap * torch.tanh(logits / self.softcap)


class Decoder(nn.Module):
    """Tokens in, logits out, over a flat row: several documents or requests at once, no padding."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        self.embed = Embed(config)
        self.layers = nn.ModuleList(DecoderLayer(config, layer, i) for i, layer in enumerate(config.layers))
        self.head = Head(config)
        self.ropes = _distinct_ropes(config)
        self.tie()

    def tie(self) -> None:
        """Make the output weight be the embedding, where the family says so. Needed again after replacing either."""
        if self.config.tied:
            self.head.out.weight = self.embed.weight

    def forward(self, tokens: Tensor, positions: Tensor, attend: Attend) -> Tensor:
        """tokens [T], positions [T] -> logits [T, V]."""
        logits: Tensor = self.head(self.trunk(tokens, positions, attend))
        return logits

    def trunk(self, tokens: Tensor, positions: Tensor, attend: Attend, read: Tensor | None = None) -> Tensor:
        """Everything before the head: [T, H], or the rows `read` of it. In the last layer the other rows only give
        their keys and values."""
        x: Tensor = self.embed(tokens)
        ropes = self.rope_tables(positions, attend, x.dtype)
        *before, last = self.layers
        for layer in before:
            x = layer(x, ropes, attend)
        x = last(x, ropes, attend, read)
        return x

    def rope_tables(self, positions: Tensor, of: Lengths, dtype: torch.dtype) -> RopeTables:
        return {
            spec: rope_tables(spec, positions, of.lengths if spec.by_length else None, dtype)
            for spec in self.ropes
        }

    def attention_specs(self) -> list[AttentionSpec]:
        return [layer.attention.spec for layer in self.layers]  # type: ignore[union-attr, misc]

    def slots(self) -> "list[Slot]":
        """Where a checkpoint has its parameters."""
        from rondo.models.families import family_of

        return list(family_of(self.config.family).slots(self.config))

    def check_whole(self) -> None:
        """Raises where this cannot be exported: it is only a part of a model, or its weights are quantized."""
        if self.config.quantization is not None:
            raise ModelError(
                f"the weights are quantized ({self.config.quantization.method}), and are neither written nor pushed "
                "from here; `rondo model export` copies the model's folder",
                param="quantization_config",
            )

    def to_hf(self) -> Iterator[tuple[str, Tensor]]:
        """Hugging Face names and tensors: views of the parameters where the layout allows, else copies."""
        from rondo.models.mapping import to_hf

        return to_hf(self)

    @property
    def dtype(self) -> torch.dtype:
        return self.embed.weight.dtype

    @property
    def device(self) -> torch.device:
        return self.embed.weight.device


def _distinct_ropes(config: ModelConfig) -> tuple[RopeSpec, ...]:
    specs = (layer.attention.rope for layer in config.layers)
    return tuple(dict.fromkeys(spec for spec in specs if spec is not None))
