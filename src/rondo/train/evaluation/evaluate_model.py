"""Evaluation of a model outside of training."""

from __future__ import annotations

from pathlib import Path

import torch

from rondo import models
from rondo.base.errors import ConfigError
from rondo.data.input.mixture import weighted
from rondo.data.storage.shards import is_prepared
from rondo.models.adapters import load_adapter
from rondo.models.files.adapter_folder import resolve_adapter
from rondo.models.store import resolve
from rondo.text.tokenizer import Tokenizer
from rondo.train.config import Kind, TrainConfig
from rondo.train.evaluation.evaluate import Evaluation, HeldOut
from rondo.train.evaluation.evaluator import Evaluator, Metrics
from rondo.train.recipes import data
from rondo.train.recipes.registry import RecipeInputs, examples


def evaluate_model(config: TrainConfig, adapter: str | None = None) -> Metrics:
    """Evaluates `config.model` on the data and tasks of `config.evaluate`, in the type of its weights."""
    if not config.model:
        raise ConfigError("which model? rondo evaluate MODEL.", param="train.model")
    folder = resolve(config.model)
    tokenizer = Tokenizer.load(folder)
    model = models.load(folder, device=config.device)
    if adapter is not None:
        load_adapter(model, resolve_adapter(adapter, "adapter"))
    evaluator = Evaluator(model)
    kind: Kind = "reward" if model.config.scores else "sft"
    if any(is_prepared(told.source) for told in weighted(config.evaluate.data)):
        kind = "pretrain"
    held_out = None
    with torch.no_grad():
        if sources := data.open_sources(kind, config, held_out=True):
            work = RecipeInputs(config, folder, tokenizer, evaluator, Path())
            own = examples(kind, work, sources)
            held_out = HeldOut(own.rows(config.tokens_per_microbatch), own.objective)
        evaluation = Evaluation.of(config.evaluate, tokenizer, config.tokens_per_microbatch, held_out)
        if evaluation is None:
            raise ConfigError("nothing to evaluate on: give --data or --tasks", param="train.evaluate")
        return evaluation(evaluator)
