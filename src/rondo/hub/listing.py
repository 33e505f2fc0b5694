"""The files of a repository at one commit: requested from the Hub, and stored in the cache for work without network."""

from __future__ import annotations

import contextlib
import json
import os
import re
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from rondo.base.errors import (
    Forbidden,
    InvalidRequest,
    NotFound,
    RondoError,
    StorageError,
    Unauthorized,
    Unavailable,
)
from rondo.base.storage.files import atomic_write
from rondo.hub.cache import LISTINGS, cached_commit, is_offline, repo_folder, snapshot_folder
from rondo.hub.names import HubName

PUBLIC = "https://huggingface.co"
DIGEST = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
"""Digests and commits become names of files, so that a mirror must not choose them freely."""
SECONDS = 30.0
"""Timeout of a request for a file list."""
TOKEN_HELP = "set HF_TOKEN to a token of https://huggingface.co/settings/tokens, or run `hf auth login`"


@dataclass(frozen=True)
class HubFile:
    path: str
    size: int
    digest: str
    """SHA-256 of a large file (64 digits), or Git's hash of a small one (40 digits)."""


@dataclass(frozen=True)
class Listing:
    name: HubName
    commit: str
    files: tuple[HubFile, ...]

    def file(self, path: str) -> HubFile | None:
        return next((file for file in self.files if file.path == path), None)

    def is_cached(self, files: list[HubFile]) -> bool:
        folder = snapshot_folder(self.name, self.commit)
        return all((folder / file.path).is_file() for file in files)


def endpoint() -> str:
    return os.environ.get("HF_ENDPOINT", "").rstrip("/") or PUBLIC


def cached_listing(name: HubName) -> Listing | None:
    """The stored list of the revision's last download; None if Rondo has not downloaded it."""
    commit = cached_commit(name)
    if commit is None:
        return None
    try:
        stored = json.loads((repo_folder(name) / LISTINGS / f"{commit}.json").read_text("utf-8"))
        return Listing(name, commit, tuple(HubFile(**each) for each in stored))
    except (OSError, ValueError, TypeError):
        return None


def request_listing(name: HubName) -> Listing:
    """The list of the revision's current commit, from the Hub."""
    if is_offline():
        raise _offline(name)
    with translated(name):
        from huggingface_hub import HfApi

        api = HfApi(endpoint=endpoint(), library_name="rondo")
        info: Any = api.repo_info(
            name.repo, repo_type=name.kind, revision=name.revision, files_metadata=True, timeout=SECONDS
        )
    files = [
        HubFile(each.rfilename, each.size or 0, str(each.lfs.sha256 if each.lfs else each.blob_id))
        for each in info.siblings
        if not _leaves(each.rfilename)
    ]
    commit = str(info.sha)
    if not all(DIGEST.fullmatch(text) for text in (commit, *(file.digest for file in files))):
        raise Unavailable(
            f"{endpoint()} sends no valid checksums for {name}. Check HF_ENDPOINT.", code="hub_error"
        )
    return Listing(name, commit, tuple(files))


def store_listing(listing: Listing) -> None:
    """Stores the list and the commit of the revision. A read-only cache stays as it is."""
    folder = repo_folder(listing.name)
    with contextlib.suppress(StorageError):
        rows = [asdict(file) for file in listing.files]
        atomic_write(folder / LISTINGS / f"{listing.commit}.json", json.dumps(rows))
        if listing.name.revision != listing.commit and not listing.commit.startswith(listing.name.revision):
            atomic_write(folder / "refs" / listing.name.revision, listing.commit)


def _leaves(path: str) -> bool:
    """Whether the path of a file points out of its repository."""
    return path.startswith("/") or ".." in path.split("/")


@contextlib.contextmanager
def translated(name: HubName) -> Iterator[None]:
    """Translates exceptions of `huggingface_hub` and of its HTTP client to errors with a remedy."""
    try:
        yield
    except RondoError:
        raise
    except Exception as error:
        known = _known(name, error)
        if known is None:
            raise
        raise known from error


def _known(name: HubName, error: Exception) -> RondoError | None:
    """The error for an exception, matched by class name: the HTTP client varies with the version."""
    kinds = {kind.__name__ for kind in type(error).__mro__}
    status = getattr(getattr(error, "response", None), "status_code", None)
    if "OfflineModeIsEnabled" in kinds:
        return _offline(name)
    if "GatedRepoError" in kinds:
        return _gated(name)
    if "RepositoryNotFoundError" in kinds:
        return _missing(name)
    if "RevisionNotFoundError" in kinds:
        return NotFound(
            f"{name.repo} has no revision {name.revision!r}. Its branches, tags and commits are at "
            f"{endpoint()}/{name.page}/commits/main",
            param="model" if name.kind == "model" else "data",
            code="revision_not_found",
        )
    if "HFValidationError" in kinds:
        return InvalidRequest(
            f"{name.repo!r} is not the name of a {_noun(name)}: {_said(error)}", param="model"
        )
    if isinstance(status, int):
        return _refused(name, status, error)
    if kinds & {"TransportError", "RequestError", "ConnectionError", "TimeoutException", "TimeoutError"}:
        return Unavailable(
            f"{endpoint()} cannot be reached for {name}: {_said(error)}. Check the network, HTTPS_PROXY and "
            "HF_ENDPOINT. Complete downloads in the cache need no network.",
            code="unreachable",
        )
    return None


def _refused(name: HubName, status: int, error: Exception) -> RondoError:
    if status == 401:
        return Unauthorized(
            f"{endpoint()} rejects the access token for {name}: it is wrong or expired. To replace it, {TOKEN_HELP}; "
            "a public model needs no token: unset HF_TOKEN.",
            code="invalid_token",
        )
    if status == 403:
        return Forbidden(
            f"{endpoint()} refuses access to {name}: {_said(error)}. Use a token with permission to read this "
            f"repository: {TOKEN_HELP}.",
            code="access_denied",
        )
    if status == 404:
        return _missing(name)
    if status == 429:
        return Unavailable(
            f"{endpoint()} limits the rate of requests: wait some minutes and run `{name.pull}` again. A token has a "
            f"higher limit: {TOKEN_HELP}.",
            code="rate_limited",
        )
    return Unavailable(
        f"{endpoint()} failed with HTTP status {status} for {name}. Run `{name.pull}` again later.",
        code="hub_error",
    )


def _offline(name: HubName) -> RondoError:
    return Unavailable(
        f"The {_noun(name)} {name} is not in the cache, and HF_HUB_OFFLINE forbids its download. Unset it and "
        f"run `{name.pull}`.",
        code="offline",
    )


def _gated(name: HubName) -> RondoError:
    return Forbidden(
        f"{name.repo} is gated: request access at {endpoint()}/{name.page}, then {TOKEN_HELP}, and run `{name.pull}`.",
        code="gated",
    )


def _missing(name: HubName) -> RondoError:
    return NotFound(
        f"There is no {_noun(name)} {name.repo!r} at {endpoint()}, or it is private. Check the name at "
        f"{endpoint()}/{'models' if name.kind == 'model' else 'datasets'}?search={name.repo.rpartition('/')[2]}; "
        f"for a private {_noun(name)}, {TOKEN_HELP}.",
        param="model" if name.kind == "model" else "data",
        code="model_not_found" if name.kind == "model" else None,
    )


def _noun(name: HubName) -> str:
    return "model" if name.kind == "model" else "data set"


def _said(error: Exception) -> str:
    return " ".join(str(error).split())[:200].rstrip(".") or type(error).__name__
