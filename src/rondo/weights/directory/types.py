"""Protocol of a weight directory. Torch-free."""

from __future__ import annotations

import os
import secrets
import socket
from dataclasses import dataclass
from typing import Protocol

from rondo.base.errors import Conflict, NotFound


@dataclass(frozen=True)
class Published:
    """A holder of a complete version. Receivers read names, shapes and buckets from the holder itself."""

    model: str
    version: int
    owner: str
    checksum: str
    nbytes: int = 0
    tensors: int = 0
    source: str = ""
    """Address from which an engine fetches the whole version; empty if it is in another process's memory."""


class WeightDirectory(Protocol):
    """Owners hold versions as long as they renew their lease. One writer per model creates versions: its fencing token
    is checked with every entry that it writes, so that a writer that lost its lease cannot publish."""

    def claim(self, model: str, owner: str, token: int | None = None) -> int:
        """Becomes the model's only writer, and returns its fencing token. Raises `Conflict` while another writer's
        lease lasts; the same owner claims again and invalidates its earlier token. `token` is the caller's earlier
        token: another claim that has replaced it is a `Conflict` too, also under the same name."""

    def check(self, model: str, token: int) -> None:
        """Raises `Conflict` unless `token` is the fencing token of the model's present writer."""

    def release(self, model: str, token: int) -> None:
        """Ends the claim that `token` belongs to, so that another writer need not wait for its lease."""

    def publish(self, entry: Published, token: int | None = None) -> None:
        """Adds a holder of a complete version. All holders of a version have the same checksum. A version that is newer
        than the newest one is accepted from the writer only, if there is one; a token must be the writer's. A version
        that is older than the newest one is accepted from further holders only: the writer gets `Conflict`."""

    def renew(self, owner: str) -> None:
        """Extends the lease of all entries of the owner. Raises `Conflict` with the code `expired` once if they are
        gone: the owner must claim and publish again."""

    def withdraw(self, model: str, version: int, owner: str) -> None: ...

    def lookup(self, model: str, version: int | None = None) -> list[Published]:
        """Live holders of a version, the newest by default: the latest ones, if there are many."""

    def watch(self, model: str, after: int, seconds: float) -> list[Published]:
        """Waits until there is a version newer than `after` and returns holders as `lookup`; empty after `seconds`."""

    def close(self) -> None: ...


def new_owner() -> str:
    """Name of an owner that no other process has."""
    return f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(4)}"


def has_writer(model: str, writer: str) -> Conflict:
    return Conflict(
        f"{model} has the writer {writer} already: end it, or wait for its lease.", code="other_writer"
    )


def newest_version(directory: WeightDirectory, model: str) -> int:
    """Newest version that has a holder; -1 if there is none."""
    try:
        return directory.lookup(model)[0].version
    except NotFound:
        return -1


def check_age(model: str, version: int, newest: int, copied: bool) -> None:
    """`copied`: the entry is a further holder of a version that another one holds."""
    if version < newest and not copied:
        raise not_newer(model, version, newest)


def not_newer(model: str, version: int, newest: int) -> Conflict:
    return Conflict(
        f"version {version} of {model} is not newer than version {newest}, which the weight directory lists: push "
        f"version {newest + 1} or a later one.",
        code="not_newer",
    )


def check_checksum(found: str, given: str, model: str, version: int, holder: str) -> None:
    if found != given:
        raise Conflict(f"version {version} of {model} has checksum {found} at {holder}, not {given}")


def not_the_writer(model: str, writer: str) -> Conflict:
    return Conflict(
        f"an invalid fencing token was given for {model}: the writer is {writer}. Claim the model again.",
        code="fenced",
    )


def no_version(model: str, version: int | None) -> NotFound:
    asked = "no version" if version is None else f"no version {version}"
    return NotFound(f"{asked} of {model} is in the weight directory")


def expired(owner: str) -> Conflict:
    return Conflict(f"the lease of {owner} has expired: publish its versions again.", code="expired")
