"""A checkpoint of a job as a model's or an adapter's folder."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import torch
from torch import nn

from rondo import models
from rondo.base.errors import InvalidRequest, NotFound
from rondo.base.storage.files import atomic_dir, refuse_existing, write_json
from rondo.jobs.job import Job
from rondo.jobs.summary import LINEAGE, lineage_of
from rondo.models.adapters import merge as merge_adapter
from rondo.models.adapters import save_adapter
from rondo.models.decoder import Decoder
from rondo.models.families import parse
from rondo.models.files.checkpoint import build
from rondo.models.files.headers import read_config
from rondo.models.fresh import make_scorer
from rondo.models.heads.scorer import scoring
from rondo.text.tokenizer import Tokenizer
from rondo.train.checkpoints.checkpoint import existing
from rondo.train.checkpoints.export import export_checkpoint
from rondo.train.checkpoints.states import AVERAGE, MODEL
from rondo.train.config import AdapterConfig
from rondo.train.recipes.adapter import put_on


def export_step(job: Job, step: int, folder: Path, *, merge: bool = False, replace: bool = False) -> Path:
    """Exports the job's checkpoint of this step, after it was verified, without the optimizer's state. An adapter is
    exported alone, or with `merge` as a whole model."""
    checkpoint = next((each for each in existing(job.checkpoints) if each.step == step), None)
    if checkpoint is None:
        steps = ", ".join(str(each.step) for each in existing(job.checkpoints)) or "none"
        raise NotFound(
            f"Job {job.label} has no checkpoint of step {step}. It has: {steps}.",
            param="model",
            code="no_checkpoint",
        )
    checkpoint.verify()
    spec, base = job.spec(), Path(str(job.origin()["base"]))
    settings: dict[str, Any] = spec.get("config", {})
    config = AdapterConfig(**settings.get("adapter", {}))
    refuse_existing(folder, replace)
    if config.kind != "none" and spec.get("kind") != "reward" and not merge:
        model = build(parse(read_config(base)))
        put_on(model, config, seed=0, base=str(base))
        _read(model, checkpoint.folder)
        shutil.rmtree(folder, ignore_errors=True)
        save_adapter(model, folder)
        write_json(folder / LINEAGE, {**lineage_of(job), "step": step})
        return folder
    with atomic_dir(folder, replace=replace) as target:
        if config.kind != "none":
            _write_merged(checkpoint.folder, base, config, target, reward=spec.get("kind") == "reward")
        else:
            shape = parse(read_config(base))
            averaged = settings.get("optim", settings).get("export") == "average"
            shape = scoring(shape) if spec.get("kind") == "reward" else shape
            export_checkpoint(shape, checkpoint.folder, target, AVERAGE if averaged else MODEL)
        Tokenizer.load(base).save(target)
        write_json(target / LINEAGE, {**lineage_of(job), "step": step})
    return folder


def _write_merged(checkpoint: str, base: Path, config: AdapterConfig, target: Path, *, reward: bool) -> None:
    if config.kind != "lora":
        raise InvalidRequest(
            "A Tokenformer cannot be merged into its base: export it alone.", param="--merge"
        )
    model = models.load(base)
    if reward:
        make_scorer(model, seed=0)
    put_on(model, config, seed=0, base=str(base))
    _read(model, checkpoint)
    merge_adapter(model)
    models.save_into(model, target)


def _read(model: Decoder, checkpoint: str) -> None:
    """Fills the parameters of the adapter; the base stays without memory."""
    from rondo.train.checkpoints import dcp

    reader = dcp.Reader(checkpoint)
    stored = reader.stored()
    wanted = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
    tensors = {
        MODEL + name: torch.empty(stored[MODEL + name].shape, dtype=stored[MODEL + name].dtype)
        for name in wanted
    }
    reader.read(tensors)
    for name in wanted:
        owner, _, last = name.rpartition(".")
        setattr(model.get_submodule(owner), last, nn.Parameter(tensors[MODEL + name]))
