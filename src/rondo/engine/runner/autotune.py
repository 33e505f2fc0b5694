"""Autotuning of a model's matrix products on this machine at the first start (`engine.autotune`)."""

from __future__ import annotations

import torch

from rondo.engine.config import EngineConfig
from rondo.models import Decoder
from rondo.models.parts import Linear
from rondo.models.quantized.parts import QuantizedLinear
from rondo.ops.dispatch import references_only
from rondo.ops.native.build.tune import tune
from rondo.ops.native.build.tuned import Product
from rondo.ops.native.gemm.linear import TYPES, takes_bf16


def autotune(model: Decoder, config: EngineConfig, one_call: bool) -> None:
    """Tunes the model's matrix products. A step compiled as one call (`one_call`) does not use the tuned splits."""
    if not config.autotune or config.deterministic or one_call or references_only():
        return
    if model.device.type == "cpu" and model.dtype in TYPES:
        tune(products_of(model))


def products_of(model: Decoder) -> list[Product]:
    """Products computed by the compiled kernel, the largest first."""
    threads = torch.get_num_threads()
    shapes = {
        (module.weight.dtype, module.out_features, module.in_features)
        for module in model.modules()
        if isinstance(module, Linear) and not isinstance(module, QuantizedLinear)
    }
    products = [Product(*shape, threads) for shape in shapes if shape[0] != torch.bfloat16 or takes_bf16()]
    return sorted(products, key=lambda each: (-each.width * each.inputs, each.name))
