"""Kind, base, files and lineage of a model, from its folder and from the folder of its job. Torch-free."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from rondo.base.errors import InvalidRequest, NotFound, RondoError
from rondo.base.storage.files import read_json
from rondo.base.storage.hashing import sha256_file, sha256_json
from rondo.control.jobs.registry.rows import ModelKind, NewModel, checkpoint_name
from rondo.jobs.folders import SHORT, aliases_of, is_model, name_of_job
from rondo.jobs.job import Job
from rondo.jobs.summary import LINEAGE, score_of

ADAPTER_CONFIG, CONFIG = "adapter_config.json", "config.json"
SCORING = ("SequenceClassification", "RewardModel", "TokenClassification")
"""Parts of the names of architectures that return scores."""
LAST = ("loss", "reward", "accuracy")
Files = dict[str, tuple[int, str]]


def model_of_job(job: Job, step: int | None = None) -> NewModel:
    """The job's final model, or its checkpoint of a step."""
    spec, origin = job.spec(), job.origin()
    adapter = (job.adapter / ADAPTER_CONFIG).is_file()
    folder = job.adapter if adapter else job.export
    kind = kind_of_folder(folder) if step is None else _trained(spec)
    alias = next(iter(aliases_of(job.path)), None)
    if alias is not None and step is not None:  # the alias itself stays with the final model
        alias = checkpoint_name(alias, step)
    return NewModel(
        name=name_of_job(job.path) or alias or job.name[:SHORT],
        job=job.name,
        kind=kind,
        source=str(folder) if step is None else f"{job.checkpoints}/step_{step}",
        step=step,
        base=str(origin["model"]) if origin.get("model") else None,
        lineage=lineage_of_job(job, spec, origin, step),
    )


def lineage_of_job(
    job: Job, spec: Mapping[str, Any], origin: Mapping[str, Any], step: int | None
) -> dict[str, Any]:
    """Base, data, settings and results of a job."""
    metrics: dict[str, Any] = {}
    with suppress(RondoError):
        rows = job.metrics()
        last: dict[str, Any] = next(
            (row for row in reversed(rows) if step is None or row.get("step") == step), {}
        )
        metrics = {name: last[name] for name in LAST if isinstance(last.get(name), int | float)}
        metrics |= {} if step is not None else score_of(job)
    return {
        "job_kind": spec.get("kind"),
        "base": origin.get("model"),
        "base_folder": origin.get("base"),
        "base_fingerprint": spec.get("model") if isinstance(spec.get("model"), str) else None,
        "data": spec.get("dataset") if isinstance(spec.get("dataset"), str) else None,
        "config": spec.get("config") if isinstance(spec.get("config"), dict) else {},
        "metrics": metrics,
        "steps": job.step if step is None else step,
    }


def model_of_folder(folder: Path, name: str, base: str | None = None) -> NewModel:
    """A model or an adapter in a folder that no job of this machine has made. Reads and hashes all files."""
    kind, files = kind_of_folder(folder), files_of(folder)
    lineage: dict[str, Any] = {}
    with suppress(NotFound):
        found = read_json(folder / LINEAGE)
        lineage = found if isinstance(found, dict) else {}
    if kind in ("lora", "tokenformer"):
        base = base or read_json(folder / ADAPTER_CONFIG).get("base_model_name_or_path")
        if not base:
            raise InvalidRequest(
                f"{folder} has an adapter whose base is unknown: give the base.",
                param="base",
                code="base_missing",
            )
    shown = {
        "job_kind": lineage.get("kind"),
        "base": base or lineage.get("parent"),
        "metrics": lineage.get("score") or {},
        "job": lineage.get("job"),
    }
    return NewModel(name, digest_of(files), kind, str(folder), base=base, files=files, lineage=shown)


def kind_of_folder(folder: Path) -> ModelKind:
    """From the configuration in the folder, or of a GGUF file."""
    found: dict[str, Any] = {}
    for name in (ADAPTER_CONFIG, CONFIG):
        with suppress(NotFound):
            found[name] = read_json(folder / name)
    return kind_of(found.get(ADAPTER_CONFIG), found.get(CONFIG), is_model(folder), str(folder))


def kind_of(adapter: Any, config: Any, whole: bool, place: str) -> ModelKind:
    """From the contents of adapter_config.json and config.json, None where there is none. `whole`: the place has the
    weights of a whole model."""
    if isinstance(adapter, dict):
        kinds: Mapping[Any, ModelKind] = {"LORA": "lora", "TOKENFORMER": "tokenformer"}
        if (kind := kinds.get(adapter.get("peft_type"))) is not None:
            return kind
        raise InvalidRequest(
            f"{place} has an adapter of the type {adapter.get('peft_type')!r}: LORA and TOKENFORMER are supported.",
            param="source",
        )
    if not whole:
        raise NotFound(
            f"{place} is no model: it has neither {CONFIG}, nor {ADAPTER_CONFIG}, nor a GGUF file.",
            param="source",
            code="no_model",
        )
    names = config.get("architectures") or [] if isinstance(config, dict) else []
    return "reward" if any(part in str(name) for name in names for part in SCORING) else "full"


def files_of(folder: Path) -> Files:
    """Size and SHA-256 of each file, by its name below the folder."""
    if folder.is_file():
        return {folder.name: (folder.stat().st_size, sha256_file(folder))}
    found = sorted(path for path in folder.rglob("*") if path.is_file())
    names = {path: path.relative_to(folder).as_posix() for path in found}
    return {names[path]: (path.stat().st_size, sha256_file(path)) for path in found if names[path][0] != "."}


def digest_of(files: Files) -> str:
    return sha256_json({name: sha256 for name, (_, sha256) in files.items()})


def _trained(spec: Mapping[str, Any]) -> ModelKind:
    """Kind of a job's checkpoints."""
    config = spec.get("config")
    adapter = config.get("adapter") if isinstance(config, dict) else None
    kind = adapter.get("kind") if isinstance(adapter, dict) else None
    if kind in ("lora", "tokenformer"):
        return "lora" if kind == "lora" else "tokenformer"
    return "reward" if spec.get("kind") == "reward" else "full"
