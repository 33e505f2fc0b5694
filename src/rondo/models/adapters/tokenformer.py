"""Tokenformer: each feed-forward layer adds (x W(x)) P, where a small attention over slots computes W(x).

Each of h heads reads its d = H/h columns of x, and mixes h matrices A_hj by softmax of x_h · k_hj / √d. Computed
literally, W(x) has H·r numbers a token. Mixing the products x_h A_hj is equivalent and needs h·h·r.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from rondo.base.errors import ModelError
from rondo.models.adapters import files
from rondo.models.adapters.attached import AttachedAdapter, attach, attached
from rondo.models.decoder import Decoder


@dataclass(frozen=True)
class TokenformerSpec:
    r: int = 32
    heads: int = 4
    base: str | None = None
    file: dict[str, Any] | None = None
    """The original `adapter_config.json`, written back unchanged."""

    def shapes(self, hidden: int) -> dict[str, tuple[int, int]]:
        return {"k": (self.heads, hidden), "v": (self.heads, hidden * self.r), "p": (self.r, hidden)}


class Tokenformer(nn.Module):
    """k [slots, H], v [slots, H*r], p [r, H]; the number of slots equals the number of heads."""

    def __init__(self, spec: TokenformerSpec, k: Tensor, v: Tensor, p: Tensor) -> None:
        super().__init__()
        self.heads = spec.heads
        self.rank = spec.r
        self.k = nn.Parameter(k)
        self.v = nn.Parameter(v)
        self.p = nn.Parameter(p)

    def forward(self, x: Tensor) -> Tensor:
        x_thd = x.to(self.k.dtype).view(x.shape[0], self.heads, -1)
        k_jhd = self.k.view(self.heads, self.heads, -1)
        a_jhdr = self.v.view(self.heads, self.heads, -1, self.rank)
        weights_thj = (torch.einsum("thd,jhd->thj", x_thd, k_jhd) / math.sqrt(x_thd.shape[-1])).softmax(-1)
        products_thjr = torch.einsum("thd,jhdr->thjr", x_thd, a_jhdr)
        return torch.einsum("thj,thjr->tr", weights_thj, products_thjr) @ self.p


def attach_tokenformer(
    model: Decoder, spec: TokenformerSpec, *, seed: int = 0, dtype: torch.dtype = torch.float32
) -> AttachedAdapter:
    """A fresh adapter: P is zero, so the model's outputs are unchanged until the first optimizer step."""
    hidden = model.config.hidden_size
    generator = torch.Generator().manual_seed(seed)

    def fresh(layer: int, name: str, shape: tuple[int, int]) -> Tensor:
        tensor = torch.zeros(shape)
        if name == "k":
            tensor.normal_(0.0, 3 / math.sqrt(hidden / spec.heads), generator=generator)
        elif name == "v":
            bound = 3 / math.sqrt(hidden)
            tensor.uniform_(-bound, bound, generator=generator)
        return tensor.to(model.device, dtype)

    return attach(model, spec, _parts(model, spec, fresh), train=True)


def load_tokenformer(model: Decoder, folder: str | Path, *, train: bool = False) -> AttachedAdapter:
    spec, parts = read_tokenformer(model, folder, train=train)
    return attach(model, spec, parts, train=train)


def read_tokenformer(
    model: Decoder,
    folder: str | Path,
    *,
    train: bool = False,
    max_rank: int | None = None,
    device: torch.device | None = None,
) -> tuple[TokenformerSpec, dict[str, nn.Module]]:
    """Reads the adapter in `folder` as modules by the path of the module that each adds to; the model stays
    unchanged."""
    folder = Path(folder)
    spec = _parse(files.read_config(folder), folder / files.CONFIG)
    files.check_rank(folder, spec.r, max_rank)
    shapes = spec.shapes(model.config.hidden_size)
    expected = {
        _key(layer, name): shape for layer in range(len(model.layers)) for name, shape in shapes.items()
    }
    tensors = files.read_tensors(folder, expected, device or model.device)
    return spec, _parts(model, spec, lambda layer, name, shape: tensors[_key(layer, name)])


def save_tokenformer(model: Decoder, folder: str | Path) -> None:
    adapter = attached(model)
    spec = adapter.spec
    if not isinstance(spec, TokenformerSpec):
        raise ModelError("the attached adapter is not Tokenformer")
    tensors = {
        _key(layer, name): parameter
        for layer in range(len(model.layers))
        for name, parameter in adapter.parts[f"layers.{layer}.mlp"].named_parameters()
    }
    config = spec.file or {
        "peft_type": "TOKENFORMER",
        "r": spec.r,
        "heads": spec.heads,
        "base_model_name_or_path": spec.base,
    }
    files.write(Path(folder), config, tensors)


def _parse(config: dict[str, Any], path: Path) -> TokenformerSpec:
    if config.get("peft_type") != "TOKENFORMER":
        raise ModelError(
            f"{path}: peft_type is {config.get('peft_type')!r}, should be 'TOKENFORMER'", param="peft_type"
        )
    for key in ("r", "heads"):
        if not isinstance(config.get(key), int) or config[key] < 1:
            raise ModelError(
                f"{path}: {key} is {config.get(key)!r}, should be a whole number above 0", param=key
            )
    return TokenformerSpec(config["r"], config["heads"], config.get("base_model_name_or_path"), config)


def _parts(
    model: Decoder, spec: TokenformerSpec, weights: Callable[[int, str, tuple[int, int]], Tensor]
) -> dict[str, nn.Module]:
    hidden = model.config.hidden_size
    if hidden % spec.heads:
        raise ModelError(
            f"Tokenformer's {spec.heads} heads do not divide the model's hidden size {hidden}", param="heads"
        )
    parts: dict[str, nn.Module] = {}
    for layer in range(len(model.layers)):
        tensors = {name: weights(layer, name, shape) for name, shape in spec.shapes(hidden).items()}
        parts[f"layers.{layer}.mlp"] = Tokenformer(spec, **tensors)
    return parts


def _key(layer: int, name: str) -> str:
    return f"{files.PREFIX}model.layers.{layer}.mlp.tokenformer_{name}"
