"""Compute type of layers, which may be narrower than the type of the weights."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from rondo.base.errors import ConfigError
from rondo.models.decoder import Decoder
from rondo.models.heads.additions import added
from rondo.models.parts import Linear
from rondo.ops.gemm.fp8 import MULTIPLE, fp8_linear
from rondo.parallel.config import MemoryConfig, Precision

FIELD = "train.precision"
_TYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
CAPABILITY = (8, 9)
"""Lowest compute capability with 8-bit float products."""


def kept_type(weights: torch.dtype, memory: MemoryConfig) -> torch.dtype:
    """Type of the stored weights, for weights loaded in the type `weights`."""
    wanted: torch.dtype = weights if memory.kept is None else getattr(torch, memory.kept)
    return wanted if wanted.itemsize > weights.itemsize else weights


def computing_type(weights: torch.dtype, precision: Precision | None) -> torch.dtype:
    """Compute type of layers. With fp8, only matrix products use 8 bits, and all other operations are bf16."""
    if precision is None:
        return weights
    found = torch.bfloat16 if precision.startswith("fp8") else _TYPES[precision]
    if found != weights and weights != torch.float32:
        kept = str(weights).removeprefix("torch.")
        raise ConfigError(
            f"{FIELD}: {precision} needs float32 weights, and they are {kept}.",
            param=FIELD,
        )
    return found


def multiply_in_fp8(model: Decoder, precision: Precision | None) -> None:
    """Converts the layers' matrices to fp8 products in place, if `precision` is an fp8 type. Embedding, head, norms,
    routers and experts are unchanged.
    """
    if precision is None or not precision.startswith("fp8"):
        return
    if model.device.type == "cuda" and torch.cuda.get_device_capability(model.device) < CAPABILITY:
        raise ConfigError(f"{FIELD}: this GPU has no 8-bit products: choose bfloat16.", param=FIELD)
    fitting = [each for each in model.layers.modules() if type(each) is Linear and _fits(each)]
    if not fitting:
        raise ConfigError(
            f"{FIELD}: no matrix of the layers has sizes divisible by {MULTIPLE}: choose bfloat16.",
            param=FIELD,
        )
    for module in fitting:
        module.__class__ = Fp8LinearByRow if precision == "fp8-rowwise" else Fp8Linear


def _fits(module: nn.Linear) -> bool:
    return module.in_features % MULTIPLE == 0 and module.out_features % MULTIPLE == 0


class Fp8Linear(Linear):
    """Linear layer with fp8 products and one scale per tensor."""

    by_row = False

    def forward(self, input: Tensor) -> Tensor:
        return added(self, input, fp8_linear(input, self.weight, self.bias, by_row=self.by_row))


class Fp8LinearByRow(Fp8Linear):
    """Linear layer with fp8 products and one scale per row and per column."""

    by_row = True
