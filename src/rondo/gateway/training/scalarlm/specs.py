"""Specifications of jobs from `train_args` and an archive: Rondo's trainer with the archive's data, or its program."""

from __future__ import annotations

import json
from typing import Any

from rondo.control.config import JobsConfig
from rondo.gateway.training.inputs import content_input
from rondo.gateway.training.scalarlm.archive import CODE, DATA, PROGRAM, ArchiveCode, ArchiveData
from rondo.gateway.training.scalarlm.fields import TrainRequest, Unprocessable
from rondo.jobs.spec import JobSpec

CONFIG, CONFIG_VARIABLE = "config.yaml", "CRAY_TRAINING_JOB_CONFIG_PATH"
"""File of a program with its arguments, and the variable that names it."""


def data_spec(wanted: TrainRequest, data: ArchiveData, gpus: int) -> JobSpec:
    """`gpus` is the number on each node."""
    told = wanted.arguments
    settings = wanted.settings(str(told.llm_name), data.records) | {"data": str(data.path)}
    all_gpus = gpus * told.nodes
    resources = {"gpus": all_gpus, "ranks": all_gpus} if gpus else {}
    if told.nodes > 1:
        resources["nodes"] = told.nodes
    return JobSpec("sft", settings, {"data": data.digest}, resources, _origin(wanted, data.digest))


def program_spec(wanted: TrainRequest, code: ArchiveCode, gpus: int, config: JobsConfig) -> JobSpec:
    """The program in its working folder, with its arguments in a file as ScalarLM writes it."""
    if wanted.arguments.nodes > 1:
        raise Unprocessable(
            "nodes: a program of an archive is one process. Leave nodes out, or omit ml/ to run Rondo's trainer.",
            param="nodes",
        )
    files = {name: str(path) for name, (path, _) in code.files.items()}
    inputs = {f"files.{name}": digest for name, (_, digest) in code.files.items()}
    data = next((name for name in files if name in DATA), None)
    origin = _origin(wanted, inputs.get(f"files.{data}"))
    arguments = origin["train_args"] | {"job_directory": ".", "training_data_path": data}
    path, digest = content_input(json.dumps(arguments, indent=2).encode())
    files[CONFIG], inputs[f"files.{CONFIG}"] = str(path), digest
    settings = {
        "command": ["python", PROGRAM],
        "env": {"PYTHONPATH": CODE, CONFIG_VARIABLE: CONFIG},
        "memory_bytes": config.code_memory_bytes,
        "file_bytes": config.code_file_bytes,
        "cpu_seconds": config.code_cpu_seconds,
        "files": files,
    }
    timeout = wanted.arguments.timeout
    resources = ({"gpus": gpus} if gpus else {}) | ({"time_limit": timeout} if timeout else {})
    # One process; it starts further ranks itself.
    return JobSpec("script", settings, inputs, {**resources, **({"ranks": 1} if gpus > 1 else {})}, origin)


def _origin(wanted: TrainRequest, digest: str | None) -> dict[str, Any]:
    args = wanted.arguments.model_dump(mode="json", exclude_none=True)
    return {"train_args": {**args, "dataset_hash": digest}, "max_steps": wanted.arguments.max_steps}
