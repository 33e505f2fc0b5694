"""Quantization of a model folder into another folder, with a report of the change in size and perplexity."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from rondo.base.errors import InvalidRequest
from rondo.base.storage.files import atomic_dir
from rondo.models.decoder import Decoder
from rondo.models.files import safetensors
from rondo.models.files.checkpoint import load
from rondo.models.files.headers import INDEX
from rondo.models.quantized.quantize.making import QuantizationRecipe, planned, quantize
from rondo.models.quantized.quantize.methods import CALIBRATED
from rondo.models.quantized.quantize.text import Text, built_in, perplexity, prepare
from rondo.models.quantized.writing import write_into
from rondo.models.store import Report, companions, copy_file, refuse_target
from rondo.text.tokenizer import Tokenizer

TOKENIZERS = ("tokenizer.json", "tokenizer.model", "vocab.json")
REPLACED = ("config.json", INDEX)


@dataclass(frozen=True)
class QuantizationReport:
    """Sizes of the weights in the files, and perplexities on held-out text, which are None without a tokenizer."""

    path: Path
    bytes_before: int
    bytes_after: int
    perplexity_before: float | None
    perplexity_after: float | None
    held_out_tokens: int


def quantize_folder(
    source: Path,
    target: Path,
    recipe: QuantizationRecipe,
    texts: Sequence[str] | None = None,
    *,
    replace: bool = False,
    report: Report | None = None,
) -> QuantizationReport:
    """Quantizes the model in `source` into `target`, which is written atomically. `texts` default to the built-in
    ones."""
    refuse_target(source, target, replace)
    model = load(source)
    plain, weights, _ = planned(model, recipe)
    text = _text(source, model, recipe, texts)
    before = _measured(model, text, "measuring", report)
    quantize(model, recipe, text.calibration if text else [], _counting(model, "quantizing", report))
    stored_before = _stored(source)
    with atomic_dir(target, replace=replace, needed=stored_before) as partial:
        write_into(partial, model, plain, weights, _nothing)
        for file in companions(source):
            if file.name not in REPLACED:
                copy_file(file, partial / file.relative_to(source), _nothing)
        del model
        after = _measured(load(partial), text, "measuring again", report)
        stored_after = _stored(partial)
    held_out = sum(len(row) - 1 for row in text.held_out) if text else 0
    return QuantizationReport(target, stored_before, stored_after, before, after, held_out)


def _text(
    source: Path, model: Decoder, recipe: QuantizationRecipe, texts: Sequence[str] | None
) -> Text | None:
    """Calibration and held-out text. None if there is no tokenizer and none is needed."""
    if any((source / name).is_file() for name in TOKENIZERS):
        return prepare(built_in() if texts is None else texts, Tokenizer.load(source), model)
    if recipe.method in CALIBRATED or texts is not None:
        raise InvalidRequest(
            f"{source} has no tokenizer, so no text can be read"
            + (f", and {recipe.method} needs some to calibrate with: " if texts is None else ": ")
            + "put the tokenizer's files there, or use int8 or fp8 without --data.",
            param="model",
        )
    return None


def _measured(model: Decoder, text: Text | None, stage: str, report: Report | None) -> float | None:
    if text is None:
        return None
    if report is not None:
        report(stage, 0, 0)
    return perplexity(model, text.held_out)


def _stored(folder: Path) -> int:
    return sum(tensor.stop - tensor.start for tensor in safetensors.open_checkpoint(folder).values())


def _counting(model: Decoder, stage: str, report: Report | None) -> Callable[[int], None]:
    done, total = 0, sum(parameter.nbytes for parameter in model.layers.parameters() if parameter.dim() > 1)

    def count(size: int) -> None:
        nonlocal done
        done += size
        if report is not None:
            report(stage, min(done, total), total)

    return count


def _nothing(count: int) -> None:
    """No progress reports: writing takes too little time."""
