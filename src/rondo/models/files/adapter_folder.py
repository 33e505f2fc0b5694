"""The folder of an adapter by name: a folder, the adapter of a job, or `ORG/NAME` of the Hugging Face Hub."""

from __future__ import annotations

from pathlib import Path

from rondo.base.errors import NotFound
from rondo.base.storage.paths import path_of
from rondo.hub.models import ensure_adapter
from rondo.hub.names import hub_name
from rondo.hub.transfer import Report
from rondo.jobs.folders import ADAPTER, find_job
from rondo.jobs.folders import NAME as JOB_NAME


def resolve_adapter(text: str, param: str, report: Report | None = None) -> Path:
    """A path that does not exist is returned as it is: reading it raises the reason."""
    path = path_of(text, param)
    if path.exists():
        return path
    if JOB_NAME.fullmatch(text) and (found := _of_job(text)) is not None:
        return found
    name = hub_name(text)
    return path if name is None else ensure_adapter(name, report)


def _of_job(text: str) -> Path | None:
    try:
        adapter = find_job(text) / ADAPTER
    except NotFound:
        return None
    if not adapter.is_dir():
        raise NotFound(
            f"Job {text} has no adapter: it is not done, or it has trained the full weights.", param="adapter"
        )
    return adapter
