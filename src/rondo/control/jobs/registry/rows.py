"""A registered model. Its id is the hash of its job, or `HASH@STEP` for a checkpoint; an imported model without a job
has the digest of its files."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

from rondo.base.errors import InvalidRequest

ModelKind = Literal["lora", "tokenformer", "full", "reward"]
Stage = Literal["candidate", "production", "archived"]
LATEST = "latest"
"""The model that was registered last."""
RESERVED = frozenset([LATEST, "aliases", "import", "events"])
HASH = re.compile(r"[0-9a-f]{6,64}", re.IGNORECASE)
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,127}")
CHECKPOINT = re.compile(r"(?P<model>[^@]{1,128}?)(?:@|:ckpt-step-)(?P<step>\d{1,12})")
"""`MODEL@STEP`, or in OpenAI's form `MODEL:ckpt-step-STEP`."""


@dataclass(frozen=True)
class NewModel:
    """Facts of a model before it has a row. `job` is the hash that names it."""

    name: str
    job: str
    kind: ModelKind
    source: str
    """Folder or URL of the weights: of the adapter, if it is one."""
    step: int | None = None
    """Step of a checkpoint; None for the final model."""
    base: str | None = None
    """Base model of an adapter: its name, or its folder."""
    files: dict[str, tuple[int, str]] | None = None
    """Size and SHA-256 of each file, by name; None until they were computed."""
    lineage: dict[str, Any] = field(default_factory=dict)

    @property
    def id(self) -> str:
        return self.job if self.step is None else f"{self.job}@{self.step}"


@dataclass(frozen=True)
class RegisteredModel:
    """A row. Times are microseconds since the epoch."""

    number: int
    id: str
    name: str
    owner: str
    job: str
    step: int | None
    kind: ModelKind
    base: str | None
    source: str
    files_text: str | None
    digest: str | None
    bytes: int | None
    lineage_text: str
    stage: Stage
    created: int

    @cached_property
    def lineage(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.lineage_text)
        return found

    @cached_property
    def files(self) -> dict[str, tuple[int, str]] | None:
        if self.files_text is None:
            return None
        return {name: (size, sha256) for name, (size, sha256) in json.loads(self.files_text).items()}

    @property
    def is_adapter(self) -> bool:
        return self.kind in ("lora", "tokenformer")


@dataclass(frozen=True)
class Alias:
    alias: str
    model: str
    """Id of the model."""
    owner: str
    promoted: bool
    """Whether it is the name of a family of models, of which one was promoted."""
    created: int
    previous: tuple[str, ...] = ()
    """Earlier targets, the newest first: a rollback returns to the first one."""


def checkpoint_name(model: str, step: int) -> str:
    """Name of a fine-tuned model's checkpoint, in OpenAI's form."""
    return f"{model}:ckpt-step-{step}"


def check_name(name: str, param: str = "name") -> None:
    taken = name in RESERVED or HASH.fullmatch(name) or CHECKPOINT.fullmatch(name)
    if not NAME.fullmatch(name) or taken:
        raise InvalidRequest(
            f"{name[:200]!r} cannot name a model: use at most 128 letters, digits, '.', '_', ':' and '-', begin with a "
            f"letter or digit, and choose no hash, no name of a checkpoint and none of {', '.join(sorted(RESERVED))}.",
            param=param,
        )
