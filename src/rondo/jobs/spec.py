"""Specification of a job as it is submitted: kind, settings, data; its digest and the command that runs it.

The digest identifies equal submissions before anything runs. The job's hash, which the trainer computes from the
contents of model and data, names the folder and the resulting model.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from rondo.base.errors import InvalidRequest
from rondo.base.storage.hashing import sha256_json

TrainKind = Literal["pretrain", "sft", "preference", "reward"]
JobKind = Literal["pretrain", "sft", "preference", "reward", "rl", "evaluate", "script"]
KINDS: tuple[JobKind, ...] = get_args(JobKind)
PLAIN = frozenset(["evaluate", "script"])
"""Kinds without a folder of the trainer's: the exit code alone is their outcome, and the digest is their hash."""


@dataclass(frozen=True)
class JobSpec:
    """`settings` are names below `train.` or `rl.`, such as `adapter.kind`; of a script `command`, `files` (paths by
    name) and limits. `inputs` are files that the settings name, by content hash, so that equal contents are equal
    specifications wherever the files are."""

    kind: JobKind
    settings: Mapping[str, Any]
    inputs: Mapping[str, str] = field(default_factory=dict)
    """Content hash of the file that a setting names, by setting."""
    resources: Mapping[str, int] = field(default_factory=dict)
    """`gpus` and `ranks`, for the launcher."""

    origin: Mapping[str, Any] = field(default_factory=dict)
    """Request of which the job was made, as its API shows it; only its metadata are part of the digest."""

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise InvalidRequest(f"kind is one of {', '.join(KINDS)}, not {self.kind!r}.", param="kind")

    @property
    def section(self) -> str:
        return "rl" if self.kind == "rl" else "train"

    @property
    def model(self) -> str:
        return str(self.settings.get("model", ""))

    @property
    def ranks(self) -> int:
        return max(self.resources.get("ranks", 1), 1)

    @property
    def digest(self) -> str:
        """Hash of the specification. The name of the job is no part of it."""
        own = {name: value for name, value in self.settings.items() if name not in ("name", *self.inputs)}
        if self.kind == "script":
            own["files"] = sorted(self.settings.get("files", {}))
        told = {
            "kind": self.kind,
            "model": self.model,
            "settings": own,
            "inputs": dict(self.inputs),
            "resources": dict(self.resources),
            "metadata": self.origin.get("metadata"),
        }
        return sha256_json(told)

    def arguments(self) -> list[str]:
        """Arguments of the `rondo` command that runs the job, and resumes it."""
        if self.kind == "script":
            return self._script()
        if self.kind == "evaluate":
            own = {name: value for name, value in self.settings.items() if name != "model"}
            return ["evaluate", self.model, "--json", *(f"--train.{name}={_text(own[name])}" for name in own)]
        verb = ["rl"] if self.kind == "rl" else ["train", self.kind]
        settings = (f"--{self.section}.{name}={_text(value)}" for name, value in self.settings.items())
        return [*verb, *settings]

    def _script(self) -> list[str]:
        told = {name: value for name, value in self.settings.items() if name not in ("command", "model")}
        return ["job", "exec", f"--options={json.dumps(told)}", "--", *self.settings["command"]]

    def to_json(self) -> str:
        return json.dumps(vars(self), separators=(",", ":"), default=dict)

    @classmethod
    def from_json(cls, text: str) -> JobSpec:
        return cls(**json.loads(text))


def _text(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value)
