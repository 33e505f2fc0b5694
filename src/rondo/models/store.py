"""The models of this machine: folders under `RONDO_HOME/models`, each in Hugging Face's layout."""

import difflib
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from rondo.base.errors import InvalidRequest, NotFound
from rondo.base.files import atomic_dir, refuse_existing
from rondo.base.hashing import sha256_file, sha256_json
from rondo.base.home import models_dir
from rondo.models.architecture import ModelConfig
from rondo.models.checkpoint import check, read_config, save_into
from rondo.models.decoder import Decoder
from rondo.models.families import parse
from rondo.models.safetensors import open_checkpoint
from rondo.text.tokenizer import Tokenizer

Report = Callable[[str, int, int], None]
"""(stage, bytes done, bytes in all); a total of 0 means that the stage cannot be measured."""

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
COPY_BYTES = 8 << 20
WEIGHT_SUFFIXES = frozenset(
    {".safetensors", ".bin", ".pt", ".pth", ".gguf", ".h5", ".msgpack", ".onnx", ".npz"}
)
LARGEST_COMPANION = 256 << 20
COMPANION_FOLDERS = ("additional_chat_templates",)


@dataclass(frozen=True)
class Facts:
    """What a model folder holds, read from its config and the headers of its weights alone."""

    path: Path
    config: ModelConfig
    parameters: int
    dtypes: tuple[str, ...]
    weight_bytes: int
    disk_bytes: int
    adapter_targets: tuple[str, ...]
    has_tokenizer: bool


def resolve(name_or_path: str | Path) -> Path:
    """The folder of a model: a name under `RONDO_HOME/models`, or any folder with a config.json."""
    text = str(name_or_path)
    if NAME.fullmatch(text) and (models_dir() / text / "config.json").is_file():
        return models_dir() / text
    path = Path(text).expanduser()
    if (path / "config.json").is_file():
        return path.absolute()
    if path.is_dir():
        raise NotFound(f"{path} is a folder without config.json, so it is not a model.", param="model")
    close = difflib.get_close_matches(text, [name for name, _ in list_models()], n=3, cutoff=0.4)
    hint = f"Did you mean {' or '.join(close)}?" if close else "`rondo model list` shows what there is."
    raise NotFound(
        f"There is no model {text!r} in {models_dir()}, and no such folder. {hint}",
        param="model",
        code="model_not_found",
    )


def list_models() -> list[tuple[str, Path]]:
    """(name, folder) of each model in `RONDO_HOME/models`, by name."""
    if not models_dir().is_dir():
        return []
    folders = sorted(models_dir().iterdir())
    return [
        (path.name, path)
        for path in folders
        if NAME.fullmatch(path.name) and (path / "config.json").is_file()
    ]


def import_model(
    source: str | Path, name: str, *, replace: bool = False, report: Report | None = None
) -> Path:
    """Checks the folder `source` as a whole and takes it in as `name`, tokenizer and all."""
    target = place(name)
    source = Path(source).expanduser()
    if not source.is_dir():
        raise NotFound(f"There is no folder {source} to import.", param="source")
    return _copy(source, target, replace, report)


def export_model(
    name: str | Path, destination: str | Path, *, replace: bool = False, report: Report | None = None
) -> Path:
    """Writes the model where `transformers` can load it from."""
    return _copy(resolve(name), Path(destination).expanduser(), replace, report)


def create_model(
    name: str,
    model: Decoder,
    tokenizer: str | Path | None = None,
    *,
    replace: bool = False,
    report: Report | None = None,
) -> Path:
    """Keeps `model` as `name`, with the tokenizer's files from the folder `tokenizer`."""
    tokens = Tokenizer.load(Path(tokenizer).expanduser()) if tokenizer is not None else None
    return _write(model, tokens.save if tokens else None, place(name), replace, report)


def facts(folder: Path) -> Facts:
    config = parse(read_config(folder))
    stored = open_checkpoint(folder)
    sizes = {name: torch.Size(tensor.shape).numel() for name, tensor in stored.items()}
    return Facts(
        path=folder,
        config=config,
        parameters=sum(sizes.values()),
        dtypes=tuple(sorted({str(tensor.dtype).removeprefix("torch.") for tensor in stored.values()})),
        weight_bytes=sum(tensor.stop - tensor.start for tensor in stored.values()),
        disk_bytes=_size_on_disk(folder),
        adapter_targets=_adapter_targets({name: tensor.shape for name, tensor in stored.items()}),
        has_tokenizer=any(
            (folder / file).is_file() for file in ("tokenizer.json", "tokenizer.model", "vocab.json")
        ),
    )


def fingerprint(folder: Path) -> str:
    """One hash of a model's bytes: config, weights and tokenizer, wherever the folder is."""
    files = {tensor.file.path for tensor in open_checkpoint(folder).values()}
    files |= {file for file in (folder / "config.json", folder / "tokenizer.json") if file.is_file()}
    return sha256_json({file.name: sha256_file(file) for file in sorted(files)})


def place(name: str) -> Path:
    """Where a model called `name` is kept."""
    if not NAME.fullmatch(name):
        raise InvalidRequest(
            f"{name!r} cannot name a model. Use letters, digits, '.', '_', '-', no '.', '_' or '-' first.",
            param="name",
        )
    return models_dir() / name


def _copy(source: Path, target: Path, replace: bool, report: Report | None) -> Path:
    """Checked as a whole, then copied as it is: nothing is converted, so every file keeps its bytes."""
    if target.exists() and source.resolve() == target.resolve():
        raise InvalidRequest(f"{source} is already there. Choose another place.")
    refuse_existing(target, replace)
    weights = {tensor.file.path for tensor in check(source).values()}
    if (source / "tokenizer.json").is_file():
        Tokenizer.load(source)  # a broken one is found now, not when it is served
    files = [*sorted(weights), *_companions(source)]
    total = sum(file.stat().st_size for file in files)
    count = _counting("copying", total, report)
    with atomic_dir(target, replace=replace, needed=total) as partial:
        for file in files:
            _copy_file(file, partial / file.relative_to(source), count)
        if report is not None:
            report("flushing to disk", 0, 0)
    return target


def _copy_file(file: Path, target: Path, count: Callable[[int], None]) -> None:
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
    needed = sum(parameter.nbytes for parameter in model.parameters())
    with atomic_dir(target, replace=replace, needed=needed) as partial:
        save_into(model, partial, progress=_counting("writing", needed, report))
        if write_others is not None:
            write_others(partial)
        if report is not None:
            report("flushing to disk", 0, 0)
    return target


def _counting(stage: str, total: int, report: Report | None) -> Callable[[int], None]:
    """A function of the bytes just moved that reports the sum of them."""
    done = 0

    def count(size: int) -> None:
        nonlocal done
        done += size
        if report is not None:
            report(stage, min(done, total), total)

    return count


def _companions(folder: Path) -> list[Path]:
    """What else belongs to a model: its config and index, tokenizer, chat templates, licence, ..."""
    files = [path for path in folder.iterdir() if path.is_file()]
    for inner in COMPANION_FOLDERS:
        files += [path for path in folder.glob(f"{inner}/*") if path.is_file()]
    return sorted(path for path in files if _is_companion(path))


def _is_companion(path: Path) -> bool:
    """Neither weights, nor the index of weights that stay behind."""
    foreign = path.suffix in WEIGHT_SUFFIXES or path.name.endswith(".bin.index.json")
    return not foreign and not path.name.startswith(".") and path.stat().st_size <= LARGEST_COMPANION


def _size_on_disk(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def _adapter_targets(shapes: dict[str, tuple[int, ...]]) -> tuple[str, ...]:
    """The layers' linear modules, as PEFT's `target_modules` names them, without routers and experts."""
    names: dict[str, None] = {}
    for name, shape in shapes.items():
        inside = re.search(r"\.layers\.\d+\.(.+)\.weight$", name)
        if inside and len(shape) == 2 and "experts" not in inside[1]:
            leaf = inside[1].rpartition(".")[2]
            if leaf not in ("gate", "router"):
                names[leaf] = None
    return tuple(names)
