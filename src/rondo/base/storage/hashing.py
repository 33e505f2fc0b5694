"""One way to turn data into a name: canonical JSON and SHA-256."""

import hashlib
import json
from pathlib import Path

from rondo.base.errors import InvalidRequest, NotFound


def canonical_json(obj: object) -> bytes:
    """The same bytes for equal data on every machine: sorted keys, no spaces, UTF-8, no NaN or infinity.

    Keys must be strings: `json` would write 1 and "1" alike, and two different objects would share a hash.
    """
    _check_keys(obj, "$")
    try:
        text = json.dumps(obj, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
        return text.encode("utf-8")
    except (TypeError, ValueError) as error:
        raise InvalidRequest(f"This cannot be hashed as canonical JSON: {error}") from None


def sha256_json(obj: object) -> str:
    return hashlib.sha256(canonical_json(obj)).hexdigest()


def sha256_file(path: str | Path) -> str:
    try:
        with open(path, "rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except FileNotFoundError:
        raise NotFound(f"There is no file {path} to hash.") from None


def _check_keys(obj: object, where: str) -> None:
    if isinstance(obj, dict):
        for key, value in obj.items():
            if not isinstance(key, str):
                raise InvalidRequest(
                    f"This cannot be hashed as canonical JSON: key {key!r} at {where} is not a string."
                )
            _check_keys(value, f"{where}.{key}")
    elif isinstance(obj, list | tuple):
        for index, value in enumerate(obj):
            _check_keys(value, f"{where}[{index}]")
