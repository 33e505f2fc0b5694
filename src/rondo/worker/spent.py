"""Tokens of a request and its response, and the FLOPs of their forward passes."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import msgspec

from rondo.plan.sizes.hf import read_config, shape_of
from rondo.plan.sizes.model import ModelShape


@dataclass(frozen=True)
class Spent:
    input_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0
    """Input tokens whose keys and values the prefix cache had."""
    prompts: int = 1
    samples: int = 1
    """Responses of all prompts."""


class _Details(msgspec.Struct):
    cached_tokens: int | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    input_tokens: int | None = None
    output_tokens: int | None = None
    prompt_tokens_details: _Details | None = None
    input_tokens_details: _Details | None = None


class _Reply(msgspec.Struct):
    usage: _Usage | None = None
    choices: list[msgspec.Raw] = []
    data: list[msgspec.Raw] = []


class _Request(msgspec.Struct):
    n: int | None = None


def spent_of(request: bytes, reply: bytes) -> Spent:
    """Zeros where the response states no tokens."""
    try:
        read = msgspec.json.decode(reply, type=_Reply)
        n = msgspec.json.decode(request, type=_Request).n or 1
    except (msgspec.DecodeError, RecursionError):
        return Spent()
    usage = read.usage
    if usage is None:
        return Spent()
    details = usage.prompt_tokens_details or usage.input_tokens_details
    samples = max(1, len(read.choices), len(read.data))
    return Spent(
        usage.prompt_tokens or usage.input_tokens or 0,
        usage.completion_tokens or usage.output_tokens or 0,
        (details.cached_tokens if details else None) or 0,
        max(1, samples // max(1, n)),
        samples,
    )


class ShapeFlops:
    """FLOPs of requests to a model, from its config.json."""

    def __init__(self, shape: ModelShape) -> None:
        self.shape = shape

    @classmethod
    def of(cls, folder: Path) -> ShapeFlops:
        return cls(shape_of(read_config(folder), folder.name))

    def __call__(self, spent: Spent) -> float:
        """Several prompts or samples count as equally long."""
        prompt = spent.input_tokens // spent.prompts
        prefill = self.shape.inference_flops(prompt, 0, spent.cached_tokens // spent.prompts)
        decode = 0.0
        if spent.output_tokens:
            length = max(1, spent.output_tokens // spent.samples)
            decode = self.shape.inference_flops(prompt, length, prompt)
        return spent.prompts * prefill + spent.samples * decode
