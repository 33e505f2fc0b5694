"""Models in an object store: their files and hashes, read at registration, and upload of a model's folder."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from rondo.base.errors import InvalidRequest
from rondo.control.jobs.registry.facts import ADAPTER_CONFIG, CONFIG, Files, digest_of, files_of, kind_of
from rondo.control.jobs.registry.rows import ModelKind

MANIFEST = "rondo-files.json"
"""Sizes and hashes of the files of an uploaded model, beside them; it is written last."""
PIECE = 4 << 20


def files_at(url: str) -> tuple[ModelKind, Files, str, str | None]:
    """Kind, files, digest and base of the model at a URL. Files of a folder without a manifest are read once to hash
    them."""
    from rondo.data.storage.places import find_files, folder_of, open_file

    url = url.rstrip("/")
    folder = folder_of(url)
    manifest = folder.read(MANIFEST)
    if manifest is not None:
        files = {name: (int(size), str(sha256)) for name, (size, sha256) in json.loads(manifest).items()}
    else:
        files = {}
        for each in find_files(url, ("",)):
            digest = hashlib.sha256()
            with open_file(each.name) as opened:
                while piece := opened.read(PIECE):
                    digest.update(piece)
            files[each.name.rpartition("/")[2]] = (each.size, digest.hexdigest())
    for name in files:
        if name.startswith("/") or ".." in name.split("/"):
            raise InvalidRequest(
                f"{url} has a file with the name {name!r}, outside of its folder.", param="source"
            )
    adapter, config = (
        _parsed(url, name, folder.read(name)) if name in files else None for name in (ADAPTER_CONFIG, CONFIG)
    )
    whole = CONFIG in files or any(name.endswith(".gguf") for name in files)
    base = adapter.get("base_model_name_or_path") if isinstance(adapter, dict) else None
    return kind_of(adapter, config, whole, url), files, digest_of(files), base


def _parsed(url: str, name: str, content: bytes | None) -> Any:
    try:
        return json.loads(content or b"{}")
    except ValueError as error:
        raise InvalidRequest(f"{url}/{name} is not JSON: {error}.", param="source") from error


def upload(folder: Path, url: str) -> Files:
    """Copies a model's folder to an object store, the manifest last."""
    from rondo.base.storage.remote import store_of, translated

    files = files_of(folder)
    store, path = store_of(url.rstrip("/"))
    with translated(url):
        for name in files:
            if url.startswith("file://"):
                store.makedirs(f"{path}/{name}".rpartition("/")[0], exist_ok=True)
            store.put_file(str(folder / name), f"{path}/{name}")
        store.pipe_file(f"{path}/{MANIFEST}", json.dumps(files).encode())
    return files
