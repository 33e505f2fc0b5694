"""Downloads of models and data sets by name, with progress on standard error."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from rondo.base.errors import NotFound
from rondo.cli.view.progress import byte_progress

Report = Callable[[str, int, int], None]


def fetch_model(name: str | Path) -> Path:
    """The folder of a model, which is downloaded if it is a name of the Hugging Face Hub and not on this machine. A
    verb calls it before it imports torch, so that a wrong name is an error at once."""
    from rondo.models.store import resolve

    with fetch_progress(str(name)) as report:
        return resolve(name, report)


def fetch_named_models(settings: Mapping[str, str | None]) -> None:
    """Resolves the models that settings name, with the setting in the error."""
    for setting, model in settings.items():
        if model:
            try:
                fetch_model(model)
            except NotFound as error:
                raise NotFound(f"{setting}: {error.message}", param=setting, code=error.code) from error


def fetch_adapters(adapters: Mapping[str, str]) -> None:
    """Downloads adapters of the Hugging Face Hub; `adapters` are places by setting."""
    from rondo.models.files.adapter_folder import resolve_adapter

    for setting, place in adapters.items():
        with fetch_progress(place) as report:
            resolve_adapter(place, setting, report)


def fetch_data(sources: str | Sequence[str]) -> None:
    """Downloads data sets of the Hugging Face Hub."""
    from rondo.data.input.formats import SUFFIXES
    from rondo.data.input.mixture import weighted
    from rondo.data.storage.places import find_files, hub_dataset

    for source in [each.source for each in weighted(sources)]:
        if hub_dataset(source, SUFFIXES) is not None:
            with fetch_progress(source) as report:
                find_files(source, SUFFIXES, report)


@contextlib.contextmanager
def fetch_progress(label: str) -> Iterator[Report]:
    """Progress that appears with the first report: a name that is on this machine prints nothing. Of several ranks on
    a machine, the first one reports."""
    from rondo.parallel.ranks.world import read_world

    with contextlib.ExitStack() as stack:
        shown: list[Report] = []

        def report(stage: str, done: int, total: int) -> None:
            if not shown:
                shown.append(stack.enter_context(byte_progress(label)))
            shown[0](stage, done, total)

        yield report if read_world().local_rank == 0 else _silent


def _silent(stage: str, done: int, total: int) -> None: ...
