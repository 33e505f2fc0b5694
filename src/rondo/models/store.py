"""The models of this machine: folders under `RONDO_HOME/models`, each in Hugging Face's layout.

Resolving names and listing models imports no torch.
"""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from rondo.base.errors import InvalidRequest, ModelError, NotFound, StorageError, Unavailable
from rondo.base.storage.files import atomic_dir, refuse_existing
from rondo.base.storage.gguf import SUFFIX, gguf_in, is_gguf, read_gguf
from rondo.base.storage.hashing import sha256_file, sha256_json
from rondo.base.storage.home import jobs_dir, models_dir
from rondo.base.storage.paths import path_of
from rondo.hub.cache import Snapshot, repo_of_snapshot, snapshots
from rondo.hub.gguf import gguf_files, label_of
from rondo.hub.models import (
    COMPANION_FOLDERS,
    LARGEST_COMPANION,
    ensure_model,
    has_tokenizer,
    has_weights,
    pull_model,
)
from rondo.hub.names import PUBLISHED, HubName, hub_name
from rondo.jobs.folders import ADAPTER, EXPORT, SHORT, find_job, job_folders, name_of_job
from rondo.jobs.folders import NAME as JOB_NAME
from rondo.models import families
from rondo.models.files.headers import Header, read_config, read_headers
from rondo.models.quantized.scheme import FIELD, numbers_of

if TYPE_CHECKING:
    from rondo.models.architecture import ModelConfig
    from rondo.models.decoder import Decoder

Report = Callable[[str, int, int], None]
"""(stage, bytes done, total bytes); a total of 0 means that the stage has no measurable progress."""

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
TUNED = "ft:"
"""Beginning of the names of models that fine-tuning jobs of the gateway produced."""
COPY_BYTES = 8 << 20
WEIGHT_SUFFIXES = frozenset(
    {".safetensors", ".bin", ".pt", ".pth", ".gguf", ".h5", ".msgpack", ".onnx", ".npz"}
)


@dataclass(frozen=True)
class Summary:
    """Basic metadata of a model folder."""

    path: Path
    family: str
    parameters: int
    dtypes: tuple[str, ...]
    weight_bytes: int
    disk_bytes: int


@dataclass(frozen=True)
class Facts(Summary):
    """Contents of a model folder, from its config and the headers of its weights only."""

    config: ModelConfig
    adapter_targets: tuple[str, ...]
    has_tokenizer: bool


def resolve(name_or_path: str | Path, report: Report | None = None) -> Path:
    """The folder or the GGUF file of a model: a name under `RONDO_HOME/models`, the path of a folder with a config.json
    or one GGUF file, the path of a GGUF file, the name, hash or hash prefix of a job for the model that the job
    produced, or `ORG/NAME[@revision][:quantization]` of the Hugging Face Hub, from its cache or downloaded into it."""
    text = str(name_or_path)
    if NAME.fullmatch(text) and _has_config(models_dir() / text):
        _refuse_job_of_same_name(text)
        return gguf_in(models_dir() / text) or models_dir() / text
    path = path_of(text, "model")
    if (path / "config.json").is_file():
        return path.absolute()
    if (file := gguf_in(path)) is not None:
        return file.absolute()
    left = _left_by_job(text) if JOB_NAME.fullmatch(text) or text.startswith(TUNED) else None
    if left is not None:
        return left
    if path.is_dir():
        raise NotFound(
            f"{path} is a folder without config.json and without a GGUF file, so it is not a model.",
            param="model",
        )
    if (name := hub_name(text)) is not None:
        return _from_hub(name, report)
    raise NotFound(
        f"There is no model {text!r} in {models_dir()}, and no such folder or job. {_hint(text)}",
        param="model",
        code="model_not_found",
    )


def _from_hub(name: HubName, report: Report | None) -> Path:
    try:
        return ensure_model(name, report, _check_config)
    except (NotFound, Unavailable) as error:
        near = _near(str(name))
        hint = f" Did you mean {near}, which is on this machine?" if near else ""
        raise type(error)(
            f"There is no folder {name} here. {error.message}{hint}", param="model", code=error.code
        ) from error


def pull(name: HubName, report: Report | None = None) -> Path:
    """Downloads the current commit of a model or adapter, and returns its folder or GGUF file."""
    return pull_model(name, report, _check_config, adapters=True)


def _check_config(folder: Path) -> None:
    """Rejects an unsupported architecture before its weights are downloaded."""
    families.check(read_config(folder))


def _hint(text: str) -> str:
    near = _near(text)
    here = f"Did you mean {near}?" if near else "`rondo model list` shows the models of this machine."
    for name in difflib.get_close_matches(text.lower(), PUBLISHED, n=1, cutoff=0.8):
        return f"{here} On the Hugging Face Hub {name} is {PUBLISHED[name]}: `rondo pull {PUBLISHED[name]}`."
    return f"{here} A model of the Hugging Face Hub has the form ORG/NAME: `rondo pull ORG/NAME`."


def _near(text: str) -> str:
    """Names of models on this machine that resemble `text`, with and without their organization."""
    names = {name.lower(): name for name, _ in list_models()}
    for snapshot in snapshots():
        names |= {each.lower(): snapshot.name for each in (snapshot.name, snapshot.name.partition("/")[2])}
    close = difflib.get_close_matches(text.lower(), names, n=3, cutoff=0.5)
    return " or ".join(dict.fromkeys(names[each] for each in close))


def _refuse_job_of_same_name(name: str) -> None:
    """Raises if a job of this name has produced another model: the name would be ambiguous."""
    for job in job_folders():
        if name_of_job(job) == name and _has_config(job / EXPORT):
            raise InvalidRequest(
                f"{name!r} is ambiguous: the model {models_dir() / name} and job {job.name[:SHORT]} have this name. "
                f"Give the folder or the hash, or rename one of them (`rondo job rename {job.name[:SHORT]} OTHER`).",
                param="model",
                code="ambiguous_name",
            )


def _left_by_job(prefix: str) -> Path | None:
    """The model produced by a job; None if there is no such job."""
    try:
        job = find_job(prefix, param="model")
    except NotFound:
        return None
    if _has_config(job / EXPORT):
        return job / EXPORT
    short = job.name[:SHORT]
    if (job / ADAPTER / "adapter_config.json").is_file():
        raise NotFound(
            f"Job {short} has left an adapter and no model of its own: name the base, and the adapter {job / ADAPTER}.",
            param="model",
            code="model_not_found",
        )
    raise NotFound(
        f"Job {short} has left no model so far: it is not done. `rondo job show {short}` says how far it is.",
        param="model",
        code="model_not_found",
    )


def name_of(folder: Path) -> str:
    """The default name of the model in the folder: the job's name, else its hash, for the output of a job, `ORG/NAME`
    or `ORG/NAME:QUANTIZATION` for a model of the Hugging Face Hub, else the folder's name. A GGUF file in
    `RONDO_HOME/models` has the name of its folder, others their own."""
    if (found := repo_of_snapshot(folder)) is not None:
        return f"{found[0]}:{label_of(str(folder))}" if is_gguf(folder) else found[0]
    if is_gguf(folder):
        return (
            folder.parent.name
            if folder.parent.parent == models_dir() or folder.parent == models_dir()
            else folder.stem
        )
    job = job_of(folder)
    return folder.name if job is None else name_of_job(job) or job.name


def job_of(folder: Path) -> Path | None:
    """The job that has exported the model in the folder."""
    job = folder.parent
    return job if folder.name == EXPORT and job.parent == jobs_dir() else None


def revision_of(folder: Path) -> str:
    """The commit of a model of the Hugging Face Hub, for the lineage of a job; empty for other models."""
    found = repo_of_snapshot(folder)
    return "" if found is None else found[1]


def written_at(path: Path) -> float:
    """When the model was written: a folder in Hugging Face layout, one with a GGUF file, or the file itself."""
    config = path / "config.json"
    return (config if config.is_file() else path).stat().st_mtime


def list_pulled() -> list[Snapshot]:
    """The models of the Hugging Face cache that Rondo can load: `name` (`ORG/NAME[@revision][:quantization]`, which
    `resolve` takes), `path`, `commit`, `disk_bytes` and `pulled` (seconds since 1970). `remove_snapshot(path)` of
    `hub.cache` removes one. Caches also contain other kinds of models and unfinished downloads, which are left out."""
    found = []
    for each in snapshots():
        if has_weights(each.path) and _is_loadable(each.path):
            found.append(each)
        for file in gguf_files(each.path):
            path = each.path / file.path
            if _is_loadable(path):
                name = f"{each.name}:{label_of(file.path)}"
                found.append(Snapshot(name, path, each.commit, file.size, each.pulled))
    return found


def _is_loadable(model: Path) -> bool:
    try:
        families.check(read_config(model))
        return True
    except ModelError:
        return False


def list_models() -> list[tuple[str, Path]]:
    """(name, folder) of each model in `RONDO_HOME/models`, by name."""
    if not models_dir().is_dir():
        return []
    try:
        folders = sorted(models_dir().iterdir())
    except OSError as error:
        raise StorageError(f"Cannot read {models_dir()}: {error.strerror}.") from error
    return [(path.name, path) for path in folders if NAME.fullmatch(path.name) and _has_config(path)]


def _has_config(folder: Path) -> bool:
    """Whether the folder has a config.json or a GGUF file. An inaccessible folder counts: opening it raises the
    reason."""
    try:
        return (folder / "config.json").is_file() or any(folder.glob(f"*{SUFFIX}"))
    except OSError:
        return True


def import_model(
    source: str | Path, name: str, *, replace: bool = False, report: Report | None = None
) -> Path:
    """Validates the folder or GGUF file `source` completely and copies it, with its tokenizer, to the model `name`."""
    target = place(name)
    source = path_of(source, "source")
    file = gguf_in(source)
    if file is None and not source.is_dir():
        raise NotFound(f"There is no folder {source} to import, and no such GGUF file.", param="source")
    return _copy(file or source, target, replace, report)


def export_model(
    name: str | Path, destination: str | Path, *, replace: bool = False, report: Report | None = None
) -> Path:
    """Copies the model to a folder that `transformers` can load. A GGUF file is dequantized."""
    source, target = resolve(name), path_of(destination, "destination")
    if is_gguf(source):
        from rondo.models.files.checkpoint import load
        from rondo.text.tokenizer import Tokenizer

        return _write(load(source), Tokenizer.load(source).save, target, replace, report)
    return _copy(source, target, replace, report)


def create_model(
    name: str,
    model: Decoder,
    tokenizer: str | Path | None = None,
    *,
    replace: bool = False,
    report: Report | None = None,
) -> Path:
    """Saves `model` as `name`, with the tokenizer's files from the folder `tokenizer`."""
    from rondo.text.tokenizer import Tokenizer

    tokens = Tokenizer.load(path_of(tokenizer, "tokenizer")) if tokenizer is not None else None
    return _write(model, tokens.save if tokens else None, place(name), replace, report)


def summary(folder: Path) -> Summary:
    folder = gguf_in(folder) or folder
    config = read_config(folder)
    families.check(config)
    return _summary(folder, str(config["model_type"]), read_headers(folder), bool(config.get(FIELD)))


def facts(folder: Path) -> Facts:
    config, headers = families.parse(read_config(folder)), read_headers(folder)
    shapes = {name: entry.shape for header in headers for name, entry in header.tensors.items()}
    return Facts(
        **vars(_summary(folder, config.family, headers, config.quantization is not None)),
        config=config,
        adapter_targets=_adapter_targets(shapes),
        has_tokenizer=_has_tokenizer(folder),
    )


def _summary(folder: Path, family: str, headers: list[Header], quantized: bool) -> Summary:
    entries = [pair for header in headers for pair in header.tensors.items()]
    return Summary(
        path=folder,
        family=family,
        parameters=sum(_numbers(name, entry.shape, quantized) for name, entry in entries),
        dtypes=tuple(sorted({entry.dtype for _, entry in entries})),
        weight_bytes=sum(entry.stop - entry.start for _, entry in entries),
        disk_bytes=_size_on_disk(folder),
    )


def _has_tokenizer(folder: Path) -> bool:
    if is_gguf(folder):
        return "tokenizer.ggml.tokens" in read_gguf(folder).metadata
    return has_tokenizer(folder)


def _numbers(name: str, shape: tuple[int, ...], quantized: bool) -> int:
    return numbers_of(name, shape) if quantized else math.prod(shape)


def fingerprint(folder: Path) -> str:
    """A hash of a model's bytes: config, weights and tokenizer, independent of the folder's path."""
    files = {header.path for header in read_headers(folder)}
    files |= {file for file in (folder / "config.json", folder / "tokenizer.json") if file.is_file()}
    return sha256_json({file.name: sha256_file(file) for file in sorted(files)})


def place(name: str) -> Path:
    """The folder of the model `name`."""
    if not NAME.fullmatch(name):
        raise InvalidRequest(
            f"{name!r} cannot name a model. Use letters, digits, '.', '_', '-', no '.', '_' or '-' first.",
            param="name",
        )
    return models_dir() / name


def _copy(source: Path, target: Path, replace: bool, report: Report | None) -> Path:
    """Validates the source, then copies the files without conversion."""
    refuse_target(source, target, replace)
    from rondo.models.files import checkpoint
    from rondo.text.tokenizer import Tokenizer

    weights = {tensor.file.path for tensor in checkpoint.check(source).values()}
    if is_gguf(source) or (source / "tokenizer.json").is_file():
        Tokenizer.load(source)  # raises for a broken tokenizer at import, not at serving
    files = [source] if is_gguf(source) else [*sorted(weights), *companions(source)]
    folder = source.parent if is_gguf(source) else source
    total = sum(file.stat().st_size for file in files)
    count = _counting("copying", total, report)
    with atomic_dir(target, replace=replace, needed=total) as partial:
        for file in files:
            copy_file(file, partial / file.relative_to(folder), count)
        if report is not None:
            report("flushing to disk", 0, 0)
    return target


def refuse_target(source: Path, target: Path, replace: bool) -> None:
    """Raises if a model made from `source` must not be written to `target`: only other models may be replaced."""
    if target.resolve() in (source.resolve(), *source.resolve().parents):
        raise InvalidRequest(f"{target} is the model itself, or has it within. Choose another place.")
    refuse_existing(target, replace)
    if target.is_dir() and any(target.iterdir()) and not _has_config(target):
        raise InvalidRequest(
            f"{target} has other things than a model, so it is not replaced. Choose another place."
        )


def copy_file(file: Path, target: Path, count: Callable[[int], None]) -> None:
    target.parent.mkdir(exist_ok=True)
    with open(file, "rb") as reader, open(target, "xb") as writer:
        while piece := reader.read(COPY_BYTES):
            count(writer.write(piece))


def _write(
    model: Decoder,
    write_others: Callable[[Path], None] | None,
    target: Path,
    replace: bool,
    report: Report | None,
) -> Path:
    from rondo.models.files.checkpoint import save_into

    needed = sum(parameter.nbytes for parameter in model.parameters())
    with atomic_dir(target, replace=replace, needed=needed) as partial:
        save_into(model, partial, progress=_counting("writing", needed, report))
        if write_others is not None:
            write_others(partial)
        if report is not None:
            report("flushing to disk", 0, 0)
    return target


def _counting(stage: str, total: int, report: Report | None) -> Callable[[int], None]:
    """A function of the bytes just moved that reports their sum."""
    done = 0

    def count(size: int) -> None:
        nonlocal done
        done += size
        if report is not None:
            report(stage, min(done, total), total)

    return count


def companions(folder: Path) -> list[Path]:
    """The other files of a model: its config and index, tokenizer, chat templates, licence, ..."""
    files = [path for path in folder.iterdir() if path.is_file()]
    for inner in COMPANION_FOLDERS:
        files += [path for path in folder.glob(f"{inner}/*") if path.is_file()]
    return sorted(path for path in files if _is_companion(path))


def _is_companion(path: Path) -> bool:
    """Whether the file is neither weights nor an index of weights in another format."""
    foreign = path.suffix in WEIGHT_SUFFIXES or path.name.endswith(".bin.index.json")
    return not foreign and not path.name.startswith(".") and path.stat().st_size <= LARGEST_COMPANION


def _size_on_disk(folder: Path) -> int:
    try:
        files = [folder] if folder.is_file() else folder.rglob("*")
        return sum(path.stat().st_size for path in files if path.is_file())
    except OSError as error:
        raise ModelError(f"cannot read {folder}: {error.strerror}") from error


def _adapter_targets(shapes: dict[str, tuple[int, ...]]) -> tuple[str, ...]:
    """The layers' linear modules, as in PEFT's `target_modules`, without routers and experts."""
    names: dict[str, None] = {}
    for name, shape in shapes.items():
        inside = re.search(r"\.layers\.\d+\.(.+)\.(?:weight|qweight|weight_packed)$", name)
        if inside and len(shape) == 2 and "experts" not in inside[1]:
            leaf = inside[1].rpartition(".")[2]
            if leaf not in ("gate", "router"):
                names[leaf] = None
    return tuple(names)
