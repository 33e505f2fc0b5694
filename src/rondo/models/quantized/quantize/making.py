"""Quantization of a model layer by layer. Each layer is calibrated on the outputs of the quantized layers before it,
and is replaced before the next one is processed. Memory holds the calibration text's hidden states and one layer in
fp32 beside the model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from rondo.base.errors import InvalidRequest, ModelError
from rondo.models.attend import Packed
from rondo.models.decoder import Decoder, DecoderLayer
from rondo.models.files.checkpoint import load
from rondo.models.files.slots import Slot
from rondo.models.quantized.methods import parse
from rondo.models.quantized.parts import quantized_weights
from rondo.models.quantized.quantize import awq, gptq, rounding
from rondo.models.quantized.quantize.folding import folds
from rondo.models.quantized.quantize.methods import CALIBRATED, Method
from rondo.models.quantized.quantize.observing import InputStatistics, Key, Observed, matrices, observing
from rondo.models.quantized.reading import Weight, divide, replace_parts, stacked
from rondo.models.quantized.scheme import FIELD, NF4_GROUP, Quantization
from rondo.ops import Quantized

GROUP_SIZE = 128
ROWS = 4096
"""Tokens in a layer's forward pass at once."""
HALVES = (torch.float16, torch.bfloat16)


@dataclass(frozen=True)
class QuantizationRecipe:
    method: Method
    group_size: int | None = None
    """Columns that share a scale in the 4-bit methods, GROUP_SIZE by default; -1 is a whole row."""

    def __post_init__(self) -> None:
        if self.group_size is not None and self.method not in CALIBRATED:
            raise InvalidRequest(
                f"--group-size is of {' and '.join(CALIBRATED)}; {self.method} has a fixed group size: leave it out.",
                param="group_size",
            )

    @property
    def group(self) -> int:
        return GROUP_SIZE if self.group_size is None else self.group_size

    def settings(self) -> dict[str, object]:
        """The `quantization_config` of the quantized model."""
        if self.method == "awq":
            return {
                "quant_method": "awq",
                "bits": 4,
                "group_size": self.group,
                "zero_point": True,
                "version": "gemm",
                "modules_to_not_convert": None,
            }
        if self.method == "gptq":
            return {
                "quant_method": "gptq",
                "bits": 4,
                "group_size": self.group,
                "sym": True,
                "desc_act": False,
                "static_groups": False,
                "true_sequential": False,
                "damp_percent": gptq.DAMPING,
                "lm_head": False,
                "checkpoint_format": "gptq",
            }
        if self.method == "nf4":
            return {
                "quant_method": "bitsandbytes",
                "load_in_4bit": True,
                "load_in_8bit": False,
                "bnb_4bit_quant_type": "nf4",
                "bnb_4bit_use_double_quant": True,
                "bnb_4bit_compute_dtype": "bfloat16",
                "bnb_4bit_quant_storage": "uint8",
                "llm_int8_skip_modules": ["lm_head"],
            }
        kind, form = {"int8": ("int", "int-quantized"), "fp8": ("float", "float-quantized")}[self.method]
        numbers = {"num_bits": 8, "type": kind, "symmetric": True, "group_size": None}
        return {
            "quant_method": "compressed-tensors",
            "format": form,
            "quantization_status": "compressed",
            "config_groups": {
                "group_0": {
                    "targets": ["Linear"],
                    "weights": numbers | {"strategy": "channel", "dynamic": False},
                    "input_activations": numbers | {"strategy": "token", "dynamic": True},
                    "output_activations": None,
                }
            },
            "ignore": ["lm_head"],
            "kv_cache_scheme": None,
        }


def planned(model: Decoder, recipe: QuantizationRecipe) -> tuple[list[Slot], list[Weight], Quantization]:
    """Slots that stay plain, weights to quantize, and the scheme. Raises if a weight's shape does not permit the
    scheme."""
    if model.config.quantization is not None:
        raise InvalidRequest(
            f"the model's weights are quantized already ({model.config.quantization.method}): start with the "
            "checkpoint that is not.",
            param="model",
        )
    if model.config.family == "gpt_oss":
        raise InvalidRequest(
            "gpt_oss keeps the experts of a layer in one tensor, for which these formats have no form; it was "
            "released in MXFP4, which loads as it is.",
            param="model",
        )
    quantization = parse({FIELD: recipe.settings()})
    assert quantization is not None
    config = model.config
    model.config = replace(config, quantization=quantization)
    try:
        plain, weights = divide(model, model.slots())
    finally:
        model.config = config
    if recipe.method in CALIBRATED:
        _check_shapes(weights, recipe.group)
    elif recipe.method == "nf4":
        _check_groups(weights)
    return plain, weights, quantization


def _check_shapes(weights: list[Weight], group_size: int) -> None:
    for weight in weights:
        rows, columns = weight.shape
        if columns % group_size if group_size > 0 else False:
            raise InvalidRequest(
                f"--group-size {group_size} does not divide the {columns} columns of {weight.module}: choose one that "
                "does, or -1 for whole rows.",
                param="group_size",
            )
        if rows % 8 or columns % 8:
            raise InvalidRequest(
                f"{weight.module} is [{rows}, {columns}], and 4-bit formats hold eight numbers together: use int8 or "
                "fp8.",
                param="method",
            )


def _check_groups(weights: list[Weight]) -> None:
    uneven = next((weight for weight in weights if weight.shape[-1] % NF4_GROUP), None)
    if uneven is not None:
        raise InvalidRequest(
            f"{uneven.module} has {uneven.shape[-1]} columns, and nf4 has groups of {NF4_GROUP}: use int8 or fp8.",
            param="method",
        )


@torch.no_grad()
def quantize(
    model: Decoder, recipe: QuantizationRecipe, rows: Sequence[Sequence[int]], progress: Callable[[int], None]
) -> None:
    """Quantizes the model in place. `rows` are the calibration text's tokens."""
    _, _, quantization = planned(model, recipe)
    states = _States(model, rows if recipe.method in CALIBRATED else [])
    for index, layer in enumerate(model.layers):
        assert isinstance(layer, DecoderLayer)
        prefix = f"layers.{index}"
        before = {key: weight.nbytes for key, weight in matrices(layer, prefix).items()}
        _put(model, layer, prefix, _quantized(layer, prefix, recipe, states))
        states.advance(layer)
        progress(sum(before.values()))
    model.config = replace(
        model.config,
        quantization=quantization,
        hf={**(model.config.hf or {}), FIELD: recipe.settings()},
    )


@torch.no_grad()
def load_nf4(folder: Path, dtype: torch.dtype | None, device: torch.device) -> Decoder:
    """Loads a model with NF4 weights in its layers, as the base of an adapter; other weights have the type `dtype`,
    by default the stored one.

    The stored weights are mapped and quantized one by one, so that memory never holds a plain copy. config.json stays
    that of the plain model, which is what an export of the merged model has.
    """
    model = load(folder)
    _, _, quantization = planned(model, QuantizationRecipe("nf4"))
    for index, layer in enumerate(model.layers):
        assert isinstance(layer, DecoderLayer)
        prefix = f"layers.{index}"
        weights = {key: weight.to(device).float() for key, weight in matrices(layer, prefix).items()}
        _check_weights(weights)
        _put(model, layer, prefix, {key: rounding.nf4(weight) for key, weight in weights.items()})
    held = {id(tensor) for weight in quantized_weights(model).values() for tensor in weight.tensors.values()}
    for parameter in model.parameters():
        if id(parameter) not in held:
            parameter.data = parameter.data.to(device, dtype or parameter.dtype)
    model.config = replace(model.config, quantization=quantization)
    return model


class _States:
    """Hidden states of the calibration text between two layers."""

    def __init__(self, model: Decoder, rows: Sequence[Sequence[int]]) -> None:
        self._model = model
        self._batches = [_packed(batch, model.device) for batch in _batches(rows)]
        self._states: list[Tensor] = [model.embed(tokens) for tokens, _ in self._batches]

    def through(self, layer: DecoderLayer) -> list[Tensor]:
        results = []
        for x, (_, attend) in zip(self._states, self._batches):
            ropes = self._model.rope_tables(attend.positions, attend, x.dtype)
            results.append(layer(x, ropes, attend))
        return results

    def advance(self, layer: DecoderLayer) -> None:
        self._states = self.through(layer)


def _batches(rows: Sequence[Sequence[int]]) -> list[list[Sequence[int]]]:
    batches: list[list[Sequence[int]]] = []
    filled = ROWS
    for row in rows:
        if filled + len(row) > ROWS:
            batches.append([])
            filled = 0
        batches[-1].append(row)
        filled += len(row)
    return batches


def _packed(rows: Sequence[Sequence[int]], device: torch.device) -> tuple[Tensor, Packed]:
    starts = [0]
    for row in rows:
        starts.append(starts[-1] + len(row))
    return torch.tensor([token for row in rows for token in row], device=device), Packed(starts, device)


def _quantized(
    layer: DecoderLayer, prefix: str, recipe: QuantizationRecipe, states: _States
) -> dict[Key, Quantized]:
    weights = {key: weight.float() for key, weight in matrices(layer, prefix).items()}
    _check_weights(weights)
    own = next(layer.parameters())
    if recipe.method == "nf4":
        return {key: rounding.nf4(weight) for key, weight in weights.items()}
    if recipe.method == "int8":
        return {key: rounding.int8(weight, own.dtype) for key, weight in weights.items()}
    if recipe.method == "fp8":
        return {key: rounding.fp8(weight, own.dtype) for key, weight in weights.items()}
    with observing(layer, prefix) as observed:
        states.through(layer)
    scales = own.dtype if own.dtype in HALVES else torch.float16
    group = recipe.group
    _check_inputs(observed)

    def size(weight: Tensor) -> int:
        return group if group > 0 else weight.shape[1]

    if recipe.method == "awq":
        _fold(layer, prefix, weights, observed.inputs, group, scales)
    results = {}
    for key, weight in weights.items():
        products = _scaled(observed.inputs.get(key), weight.shape[1])
        if recipe.method == "gptq":
            try:
                results[key] = gptq.quantize(weight, products, size(weight), scales)
            except ValueError as error:
                raise ModelError(f"{_told(key)} cannot be quantized: {error}", param="model") from error
        else:
            cut = not key[0].endswith((".q.weight", ".k.weight"))
            results[key] = awq.quantize(weight, products, size(weight), scales, cut)
    return results


def _check_weights(weights: dict[Key, Tensor]) -> None:
    """Raises if a weight has non-finite values, which no method can quantize: the model is damaged."""
    for key, weight in weights.items():
        if not weight.isfinite().all():
            raise ModelError(f"{_told(key)} cannot be quantized: it has non-finite values", param="model")


def _check_inputs(observed: Observed) -> None:
    """Raises if calibration inputs are not finite: the model is damaged, or its dtype overflows."""
    for key, inputs in observed.inputs.items():
        if not (inputs.products.isfinite().all() and inputs.magnitudes.isfinite().all()):
            raise ModelError(
                f"{_told(key)} cannot be quantized: its calibration inputs, squared and summed, are not finite. "
                "Check that the model is valid and its dtype wide enough, or use int8 or fp8.",
                param="model",
            )


def _told(key: Key) -> str:
    return key[0] if key[1] is None else f"{key[0]} of expert {key[1]}"


def _scaled(inputs: InputStatistics | None, columns: int) -> Tensor:
    """Mean products of the inputs; the identity without any rows (an expert without tokens), so that all inputs weigh
    the same."""
    if inputs is None or inputs.count == 0:
        return torch.eye(columns)
    return inputs.products / inputs.count


def _fold(
    layer: DecoderLayer,
    prefix: str,
    weights: dict[Key, Tensor],
    inputs: dict[Key, InputStatistics],
    group: int,
    scales: torch.dtype,
) -> None:
    """Selects factors, multiplies the columns by them, and folds their inverse into the producers of the inputs."""
    for fold in folds(layer, prefix, weights):
        fed = {id(inputs[key]): inputs[key] for key in fold.fed if key in inputs}.values()
        count = sum(one.count for one in fed)
        if count == 0:
            continue
        sizes = sum((one.magnitudes for one in fed), torch.zeros_like(next(iter(fed)).magnitudes)) / count
        pairs = [(weights[key], _scaled(inputs.get(key), weights[key].shape[1])) for key in fold.fed]
        chosen = awq.factors(pairs, sizes, group if group > 0 else len(sizes), scales)
        for key in fold.fed:
            weights[key] = weights[key] * chosen
        for one in fed:
            one.divide(chosen)
        fold.shrink(chosen)


def _put(model: Decoder, layer: DecoderLayer, prefix: str, results: dict[Key, Quantized]) -> None:
    experts: dict[str, list[Quantized]] = {}
    parts: dict[str, Quantized] = {}
    for (param, expert), weight in results.items():
        if expert is None:
            parts[param] = weight
        else:
            experts.setdefault(param, []).append(weight)
    parts |= {param: stacked(each) for param, each in experts.items()}
    replace_parts(model, dict(layer.named_modules(prefix=prefix)), parts)
