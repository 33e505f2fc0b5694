"""Names on the Hugging Face Hub: `ORG/NAME[@revision]`, and of data sets `ORG/NAME[@revision][:split]`."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

Kind = Literal["model", "dataset"]

_PART = r"[A-Za-z0-9][A-Za-z0-9._-]{0,95}"
_REVISION = r"[A-Za-z0-9_][A-Za-z0-9._+/-]{0,199}"
_NAME = re.compile(
    rf"(?P<repo>{_PART}/{_PART})(?:@(?P<revision>{_REVISION}))?(?::(?P<split>[A-Za-z0-9][A-Za-z0-9._/-]{{0,99}}))?"
)


@dataclass(frozen=True)
class HubName:
    """A repository of the Hub at a revision: a branch, a tag or a commit."""

    kind: Kind
    repo: str
    revision: str = "main"
    split: str = ""
    """Part of a data set: `split` or `configuration/split`."""

    def __str__(self) -> str:
        return self.repo + (f"@{self.revision}" if self.revision != "main" else "")

    @property
    def page(self) -> str:
        """Path of the repository's page on the Hub."""
        return self.repo if self.kind == "model" else f"datasets/{self.repo}"

    @property
    def pull(self) -> str:
        """The command that downloads the repository."""
        return f"rondo pull {self}" + (" --dataset" if self.kind == "dataset" else "")


def hub_name(text: str, kind: Kind = "model") -> HubName | None:
    """The repository that `text` names; None if `text` does not have the form of such a name."""
    match = _NAME.fullmatch(text)
    if match is None or ".." in text or (match["split"] and kind == "model"):
        return None
    return HubName(kind, match["repo"], match["revision"] or "main", match["split"] or "")
