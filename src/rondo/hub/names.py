"""Names on the Hugging Face Hub: `ORG/NAME[@revision][:part]`. The part is the quantization of a GGUF file, or the
split of a data set."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

Kind = Literal["model", "dataset"]

_PART = r"[A-Za-z0-9][A-Za-z0-9._-]{0,95}"
_REVISION = r"[A-Za-z0-9_][A-Za-z0-9._+/-]{0,199}"
_SITE = r"(?:https://)?(?:hf\.co|huggingface\.co)/"
"""Beginning of an address, and of Ollama's names of models of the Hub."""
_NAME = re.compile(
    rf"(?:{_SITE})?(?P<repo>{_PART}/{_PART})(?:@(?P<revision>{_REVISION}))?"
    r"(?::(?P<part>[A-Za-z0-9][A-Za-z0-9._/-]{0,199}))?"
)

PUBLISHED = {
    "smollm2-135m": "HuggingFaceTB/SmolLM2-135M-Instruct",
    "llama-3.2-1b": "meta-llama/Llama-3.2-1B-Instruct",
    "llama-2-7b": "meta-llama/Llama-2-7b-chat-hf",
    "llama-3-8b": "meta-llama/Meta-Llama-3-8B-Instruct",
    "llama-3-70b": "meta-llama/Meta-Llama-3-70B-Instruct",
    "llama-3-405b": "meta-llama/Llama-3.1-405B-Instruct",
    "qwen3-0.6b": "Qwen/Qwen3-0.6B",
    "qwen3-1.7b": "Qwen/Qwen3-1.7B",
    "qwen3-4b": "Qwen/Qwen3-4B",
    "qwen3-8b": "Qwen/Qwen3-8B",
    "qwen3-14b": "Qwen/Qwen3-14B",
    "qwen3-32b": "Qwen/Qwen3-32B",
    "qwen3-30b-a3b": "Qwen/Qwen3-30B-A3B",
    "qwen3-235b-a22b": "Qwen/Qwen3-235B-A22B",
    "mixtral-8x7b": "mistralai/Mixtral-8x7B-Instruct-v0.1",
    "mixtral-8x22b": "mistralai/Mixtral-8x22B-Instruct-v0.1",
    "deepseek-v3": "deepseek-ai/DeepSeek-V3",
    "kimi-k2": "moonshotai/Kimi-K2-Instruct",
}
"""Repositories of the models that `rondo plan` lists by name."""


@dataclass(frozen=True)
class HubName:
    """A repository of the Hub at a revision: a branch, a tag or a commit."""

    kind: Kind
    repo: str
    revision: str = "main"
    part: str = ""
    """Of a data set, `split` or `configuration/split`; of a model, the quantization or the name of a GGUF file."""

    def __str__(self) -> str:
        return f"{self.repo_at}:{self.part}" if self.part and self.kind == "model" else self.repo_at

    @property
    def repo_at(self) -> str:
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
    if match is None or ".." in text:
        return None
    return HubName(kind, match["repo"], match["revision"] or "main", match["part"] or "")
