"""Object stores, through fsspec. `s3://` needs the extra `s3`; credentials, region and endpoint are configured like the
AWS tools (`AWS_ACCESS_KEY_ID`, `AWS_PROFILE`, `AWS_ENDPOINT_URL`, ...)."""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

from rondo.base.errors import ConfigError, InvalidRequest, MissingExtra, NotFound, StorageError, Unavailable

CONNECT_SECONDS, READ_SECONDS, ATTEMPTS = 10, 60, 3
_EXTRAS = {"s3": ("s3fs", "s3"), "s3a": ("s3fs", "s3")}


def is_remote(name: str) -> bool:
    return "://" in name


def store_of(url: str) -> tuple[Any, str]:
    """The file system of a URL, and the path in it."""
    scheme, _, path = url.partition("://")
    with translated(url):
        store = _store(scheme, os.getpid())
        return store, store._strip_protocol(url) if path else ""


def files_at(place: str, pattern: str) -> dict[str, float]:
    """Files of a folder or URL that match a pattern such as `*/name`, with the times of their last change."""
    if not is_remote(place):
        found: dict[str, float] = {}
        for file in Path(place).glob(pattern):
            with contextlib.suppress(FileNotFoundError):  # deleted meanwhile
                found[str(file)] = file.stat().st_mtime
        return found
    store, path = store_of(place)
    with translated(place):
        listed = store.glob(f"{path.rstrip('/')}/{pattern}", detail=True)
    return {name: _changed(info) for name, info in listed.items()}


def _changed(info: dict[str, Any]) -> float:
    time = next((info[name] for name in ("LastModified", "mtime", "created") if info.get(name)), 0.0)
    return time.timestamp() if isinstance(time, datetime) else float(time)


@functools.lru_cache(maxsize=8)
def _store(scheme: str, process: int) -> Any:
    import fsspec

    options: dict[str, Any] = {"use_listings_cache": False}
    if scheme in _EXTRAS:
        patience = {"connect_timeout": CONNECT_SECONDS, "read_timeout": READ_SECONDS}
        options["config_kwargs"] = {**patience, "retries": {"max_attempts": ATTEMPTS}}
    try:
        return fsspec.filesystem(scheme, skip_instance_cache=True, **options)
    except ImportError as error:
        if scheme in _EXTRAS:
            raise MissingExtra(*_EXTRAS[scheme]) from error
        raise ConfigError(
            f"{scheme}:// needs a package that is not installed: {error}", param="data"
        ) from error
    except ValueError as error:
        raise ConfigError(
            f"there is no kind of store called {scheme}://: use s3:// or a path", param="data"
        ) from error


@contextlib.contextmanager
def translated(url: str) -> Iterator[None]:
    """Translates a store's exceptions to errors with a remedy."""
    try:
        yield
    except FileNotFoundError as error:
        raise NotFound(
            f"there is nothing at {url}{_why(error)}. Check the bucket and the path.", param="data"
        ) from error
    except PermissionError as error:
        raise StorageError(
            f"the store refuses {url}: {_said(error)}. Check the credentials (AWS_ACCESS_KEY_ID, "
            "AWS_SECRET_ACCESS_KEY or AWS_PROFILE) and their permissions.",
            code="refused",
        ) from error
    except (OSError, ValueError) as error:
        raise _named(url, error) or error from error
    except Exception as error:
        known = _named(url, error)
        if known is None:
            raise
        raise known from error


def _named(url: str, error: Exception) -> Exception | None:
    """The error for an exception, matched by class name, because the libraries that define the classes may not be
    installed."""
    kinds = {kind.__name__ for kind in type(error).__mro__}
    if kinds & {
        "NoCredentialsError",
        "PartialCredentialsError",
        "CredentialRetrievalError",
        "TokenRetrievalError",
    }:
        return ConfigError(
            f"no credentials for {url}: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE.",
            param="data",
            code="no_credentials",
        )
    if kinds & {
        "EndpointConnectionError",
        "ConnectTimeoutError",
        "ReadTimeoutError",
        "ConnectionError",
        "HTTPClientError",
        "ClientConnectorError",
        "TimeoutError",
    }:
        return Unavailable(
            f"{url} cannot be reached: {_said(error)}. Check AWS_ENDPOINT_URL and the network.",
            code="unreachable",
        )
    if kinds & {"ParamValidationError", "ClientError", "BotoCoreError"}:
        return InvalidRequest(f"the store refuses {url}: {_said(error)}", param="data")
    return None


def _why(error: Exception) -> str:
    """The exception's text, unless it is only the path."""
    said = _said(error)
    return f": {said.rstrip('.')}" if " " in said else ""


def _said(error: Exception) -> str:
    return " ".join(str(error).split())[:300] or type(error).__name__
