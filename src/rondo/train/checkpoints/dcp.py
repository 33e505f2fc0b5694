"""Writing and reading of all ranks' tensors in one folder with torch's distributed checkpoints: reader and writer may
have different layouts. Files are hashed while they are written.

Other modules import this one where they use it: it takes a second, which the first step of a job should not wait for.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.filesystem import FileSystemBase, FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import SavePlan, TensorWriteData, WriteItem, WriteItemType
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save
from torch.distributed.tensor import DTensor

from rondo.base.errors import RondoError, StorageError
from rondo.base.storage.files import storage_error
from rondo.base.storage.remote import is_remote, store_of, translated
from rondo.parallel.tensor.own_part import local_of
from rondo.train.checkpoints.states import TensorMeta

# torch warns about every checkpoint of a single process, which is intended here.
warnings.filterwarnings("ignore", message="torch.distributed is disabled, unavailable or uninitialized")


@dataclass(frozen=True)
class LocalTensor:
    """This rank's part of a tensor, in host memory."""

    tensor: Tensor
    shape: torch.Size
    """Shape of the whole tensor."""
    offsets: torch.Size


Pieces = Mapping[str, LocalTensor]


def copies_of(tensors: Mapping[str, Tensor], before: Pieces | None = None) -> dict[str, LocalTensor]:
    """Copies of this rank's part of each tensor in host memory, so that the tensors may change. The memory of the
    copies in `before` is reused.
    """
    copies = {name: _copy(tensor, (before or {}).get(name)) for name, tensor in tensors.items()}
    if any(tensor.is_cuda for tensor in tensors.values()):
        torch.cuda.synchronize()
    return copies


def _copy(tensor: Tensor, before: LocalTensor | None) -> LocalTensor:
    local = local_of(tensor)
    if before is not None and before.tensor.shape == local.shape and before.tensor.dtype == local.dtype:
        host = before.tensor
    else:
        host = torch.empty(local.shape, dtype=local.dtype, pin_memory=local.is_cuda)
    host.copy_(local.detach(), non_blocking=local.is_cuda)
    return LocalTensor(host, tensor.shape, _offsets(tensor))


def write(pieces: Pieces, folder: str, group: Any = None) -> dict[str, str]:
    """Writes this rank's pieces, together with the ranks of `group`. Returns the SHA-256 of each file that this rank
    wrote.
    """
    files = _Files()
    writer = FileSystemWriter(folder, single_file_per_rank=True, sync_files=not is_remote(folder))
    writer.fs, writer.path = files, files.init_path(folder)  # type: ignore[assignment]
    with _explained(folder):
        save({}, storage_writer=writer, planner=_Planner(pieces), process_group=group, no_dist=group is None)
    return files.sums


class Reader:
    """Reader of one checkpoint."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._reader = _Storage(folder)

    def stored(self) -> dict[str, TensorMeta]:
        with _explained(self._folder):
            found = self._reader.read_metadata().state_dict_metadata
        return {
            name: TensorMeta(tuple(what.size), what.properties.dtype)
            for name, what in found.items()
            if isinstance(what, TensorStorageMetadata)
        }

    def read(self, tensors: dict[str, Tensor], group: Any = None) -> None:
        """Fills this rank's part of the tensors in place; all ranks of a `group` must call it together."""
        wanted = cast(dict[str, Any], tensors)
        with _explained(self._folder):
            load(wanted, storage_reader=self._reader, process_group=group, no_dist=group is None)


class _Storage(FileSystemReader):
    """Storage reader that caches its metadata."""

    def __init__(self, folder: str) -> None:
        super().__init__(folder)
        self.fs = files = _Files()  # type: ignore[assignment]
        self.path = files.init_path(folder)
        self._metadata: Metadata | None = None

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        if self._metadata is None:
            self._metadata = super().read_metadata(*args, **kwargs)
        return self._metadata

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        """Has no effect: a reader stays with its checkpoint."""


def _offsets(tensor: Tensor) -> torch.Size:
    from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

    if not isinstance(tensor, DTensor):
        return torch.Size([0] * tensor.ndim)
    _, offsets = compute_local_shape_and_global_offset(tensor.shape, tensor.device_mesh, tensor.placements)
    return torch.Size(offsets)


class _Planner(DefaultSavePlanner):
    """Writes pieces instead of a state dict, under their names."""

    def __init__(self, pieces: Pieces) -> None:
        super().__init__(flatten_state_dict=False)
        self._pieces = pieces

    def create_local_plan(self) -> SavePlan:
        items = [_item(name, piece) for name, piece in sorted(self._pieces.items()) if piece.tensor.numel()]
        self.plan = SavePlan(items)
        return self.plan

    def lookup_object(self, index: MetadataIndex) -> Tensor:
        return self._pieces[index.fqn].tensor


def _item(name: str, piece: LocalTensor) -> WriteItem:
    return WriteItem(
        index=MetadataIndex(name, piece.offsets),
        type=WriteItemType.SHARD,
        tensor_data=TensorWriteData(
            chunk=ChunkStorageMetadata(piece.offsets, piece.tensor.shape),
            properties=TensorProperties.create_from_tensor(piece.tensor),
            size=piece.shape,
        ),
    )


class _Files(FileSystemBase):
    """A folder on the local disk or in an object store, with the interface of torch's readers and writers."""

    def __init__(self) -> None:
        self.sums: dict[str, str] = {}

    @contextlib.contextmanager
    def create_stream(self, path: str | os.PathLike[str], mode: str) -> Iterator[Any]:
        name = os.fspath(path)
        with contextlib.ExitStack() as stack:
            if is_remote(name):
                store, inside = store_of(name)
                stream = stack.enter_context(store.open(inside, mode))
            else:
                stream = stack.enter_context(open(name, mode))
            if "r" in mode:
                yield stream
                return
            hashed = _Hashed(stream)
            try:
                yield hashed
            except RuntimeError as error:
                if hashed.failure is None:
                    raise
                raise hashed.failure from error
        self.sums[name.rpartition("/")[2]] = hashed.hexdigest()

    def concat_path(self, path: str | os.PathLike[str], suffix: str) -> str:
        return f"{os.fspath(path)}/{suffix}"

    def rename(self, path: str | os.PathLike[str], new_path: str | os.PathLike[str]) -> None:
        old, new = os.fspath(path), os.fspath(new_path)
        if is_remote(old):
            store, inside = store_of(old)
            store.mv(inside, store_of(new)[1])
        else:
            os.replace(old, new)
        self.sums[new.rpartition("/")[2]] = self.sums.pop(old.rpartition("/")[2])

    def init_path(self, path: str | os.PathLike[str]) -> str:
        return os.fspath(path)

    def mkdir(self, path: str | os.PathLike[str]) -> None:
        if not is_remote(os.fspath(path)):  # an object store has no folders
            Path(path).mkdir(parents=True, exist_ok=True)

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        return True

    def exists(self, path: str | os.PathLike[str]) -> bool:
        name = os.fspath(path)
        if is_remote(name):
            store, inside = store_of(name)
            return bool(store.exists(inside))
        return Path(name).exists()

    def rm_file(self, path: str | os.PathLike[str]) -> None:
        name = os.fspath(path)
        if is_remote(name):
            store, inside = store_of(name)
            store.rm_file(inside)
        else:
            Path(name).unlink()


class _Hashed:
    def __init__(self, stream: Any) -> None:
        self._stream = stream
        self._sum = hashlib.sha256()
        self.failure: OSError | None = None
        """Error of the disk, in whose place torch's zip writer raises one about its position in the file."""
        for name in ("tell", "flush", "close", "fileno"):
            setattr(self, name, getattr(stream, name))

    def write(self, data: Any) -> int:
        self._sum.update(data)
        try:
            count: int = self._stream.write(data)
        except OSError as error:
            self.failure = self.failure or error
            raise
        return count

    def hexdigest(self) -> str:
        return self._sum.hexdigest()


@contextlib.contextmanager
def _explained(folder: str) -> Iterator[None]:
    """Converts an error on any of the ranks to one with a line on its remedy."""
    try:
        yield
    except CheckpointException as error:
        rank, (reason, _) = min(error.failures.items())
        raise _explanation(folder, reason, f"rank {rank}: ") from error
    except OSError as error:
        raise _explanation(folder, error, "") from error


def _explanation(folder: str, reason: BaseException, whose: str) -> BaseException:
    if isinstance(reason, RondoError):
        return reason
    if is_remote(folder):
        try:
            with translated(folder):
                raise reason
        except Exception as known:
            return known
    number = getattr(reason, "errno", None)
    if isinstance(reason, OSError) and number != errno.ENOENT:
        return storage_error(folder, reason)
    return StorageError(f"{whose}{folder}: {' '.join(repr(reason).split())[:300]}")
