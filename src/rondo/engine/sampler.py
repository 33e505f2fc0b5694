"""From logits to tokens, for the whole batch at once; what no request asks for is not computed.

A request's token is a function of its own logits, seed and position. Log-probabilities come from the function the
learner uses, of the distribution before top-k, top-p, min-p, penalties and biases.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rondo.engine.randomness import uniforms
from rondo.engine.request import Request
from rondo.ops import token_logprobs

Ints = NDArray[np.int64]

FILTERS, EDITS, LOGPROBS, TOP, RAW = 1, 2, 4, 8, 16
NO_TOKEN = -1
ALL = 2**31
"""A top-k beyond every vocabulary."""


@dataclass(frozen=True, slots=True)
class Sampled:
    tokens: list[int]
    """NO_TOKEN where the model's logits are not finite."""
    logprobs: list[float] | None
    top: dict[int, list[tuple[int, float]]]
    """The likeliest alternatives, for the rows that asked."""


class Sampler:
    """Holds each running request's parameters by its row, so that a step gathers them without a loop."""

    def __init__(self, max_num_seqs: int, stop_ids: tuple[int, ...] = ()) -> None:
        self.eos_ids = stop_ids
        self._temperature = np.zeros(max_num_seqs, dtype=np.float32)
        self._top_k = np.zeros(max_num_seqs, dtype=np.int64)
        self._top_p = np.ones(max_num_seqs, dtype=np.float32)
        self._min_p = np.zeros(max_num_seqs, dtype=np.float32)
        self._seed = np.zeros(max_num_seqs, dtype=np.uint64)
        self._needs = np.zeros(max_num_seqs, dtype=np.int64)

    def admit(self, request: Request) -> None:
        params, row = request.sampling, request.row
        self._temperature[row] = params.temperature
        self._top_k[row] = min(params.top_k, ALL)
        self._top_p[row] = params.top_p
        self._min_p[row] = params.min_p
        self._seed[row] = request.seed
        filtered = params.temperature > 0 and (params.top_k > 0 or params.top_p < 1 or params.min_p > 0)
        self._needs[row] = (
            FILTERS * filtered
            + EDITS * params.edits_logits
            + LOGPROBS * (params.logprobs is not None)
            + TOP * bool(params.logprobs)
            + RAW * (params.logprobs_mode == "raw")
        )

    def sample(self, logits: Tensor, requests: list[Request], ahead: Ints | None = None) -> Sampled:
        """logits [R, V], one row a request; or several of one, each after so many of its proposals as `ahead`
        says."""
        rows = np.array([request.row for request in requests], dtype=np.int64)
        needs = self._needs[rows]
        wanted = int(np.bitwise_or.reduce(needs))
        tokens = self._choose(logits, requests, rows, ahead)
        if not wanted & LOGPROBS:
            return Sampled(tokens.tolist(), None, {})
        temperature = np.where(needs & RAW, 1.0, self._temperature[rows]).astype(np.float32)
        logprobs, top = _logprobs(logits, tokens.clamp(min=0), temperature, requests, needs)
        return Sampled(tokens.tolist(), logprobs, top)

    def choose(self, logits: Tensor, requests: list[Request]) -> list[int]:
        """The tokens alone."""
        rows = np.array([request.row for request in requests], dtype=np.int64)
        tokens: list[int] = self._choose(logits, requests, rows, None).tolist()
        return tokens

    def _choose(self, logits: Tensor, requests: list[Request], rows: Ints, ahead: Ints | None) -> Tensor:
        needs = self._needs[rows]
        wanted = int(np.bitwise_or.reduce(needs))
        if wanted & EDITS:
            logits = self._edit(logits, requests, needs, ahead)
        temperature = self._temperature[rows]
        hot = temperature > 0
        if not hot.any():
            return likeliest(logits)
        positions = np.array([len(request.tokens) for request in requests], dtype=np.int64)
        if ahead is not None:
            positions += ahead
        draws = torch.from_numpy(
            uniforms(self._seed[rows], positions.astype(np.uint64)).astype(np.float32)
        ).to(logits.device)
        # The largest draws round up to 1, which would fall off the distribution's end.
        draws.clamp_(max=1 - 2**-24)
        scale = torch.from_numpy(np.where(hot, temperature, 1.0).astype(np.float32)).to(logits.device)
        probs = torch.softmax(logits.float() / scale[:, None], dim=-1)
        tokens = draw(probs, draws)
        if wanted & FILTERS:
            which = np.flatnonzero(needs & FILTERS)
            index = torch.from_numpy(which).to(logits.device)
            subset = rows[which]
            limits = (self._top_k[subset], self._top_p[subset], self._min_p[subset])
            tokens[index] = draw_filtered(probs[index], draws[index], *(torch.from_numpy(x) for x in limits))
        if not hot.all():
            tokens = torch.where(torch.from_numpy(hot).to(logits.device), tokens, likeliest(logits))
        return tokens

    def _edit(self, logits: Tensor, requests: list[Request], needs: Ints, ahead: Ints | None) -> Tensor:
        """A copy with the biases and penalties of the few requests that have some."""
        logits = logits.float().clone()
        for i in np.flatnonzero(needs & EDITS).tolist():
            edit_row(logits[i], requests[i], self.eos_ids, 0 if ahead is None else int(ahead[i]))
        return logits


def likeliest(logits: Tensor) -> Tensor:
    best = logits.max(-1)
    return torch.where(best.values.isfinite(), best.indices, NO_TOKEN)


def draw(probs: Tensor, draws: Tensor) -> Tensor:
    """Inverse of the cumulative distribution: probs [R, V], draws [R] in [0, 1) -> tokens [R]."""
    cumulative = probs.cumsum(-1)
    mass = cumulative[:, -1:]
    tokens = torch.searchsorted(cumulative, draws[:, None] * mass, right=True)
    return torch.where(mass.isfinite(), tokens.clamp_(max=probs.shape[-1] - 1), NO_TOKEN).squeeze(-1)


def draw_filtered(probs: Tensor, draws: Tensor, top_k: Tensor, top_p: Tensor, min_p: Tensor) -> Tensor:
    """As `draw`, from what top-k, then top-p, then min-p leave; a limit that is off is 0, 1 and 0."""
    ordered, order = probs.sort(dim=-1, descending=True, stable=True)
    limits = (limit.to(probs.device)[:, None] for limit in (top_k, top_p, min_p))
    top_k, top_p, min_p = limits
    ranks = torch.arange(probs.shape[-1], device=probs.device)[None]
    ordered = ordered.masked_fill((ranks >= top_k) & (top_k > 0), 0.0)
    mass = ordered.cumsum(-1)
    before = mass - ordered
    ordered = ordered.masked_fill((before >= top_p * mass[:, -1:]) & (top_p < 1), 0.0)
    ordered = ordered.masked_fill(ordered < min_p * ordered[:, :1], 0.0)
    rank = draw(ordered, draws)
    return torch.where(rank == NO_TOKEN, NO_TOKEN, order.gather(-1, rank.clamp(min=0)[:, None]).squeeze(-1))


def edit_row(logits: Tensor, request: Request, eos_ids: tuple[int, ...], ahead: int = 0) -> None:
    """In place: repetition penalty over prompt and answer, presence and frequency over the answer, then biases.

    A row that counts comes after proposals that became tokens: `ahead` of them are part of the answer."""
    params, device = request.sampling, logits.device
    tokens = request.tokens + request.proposed[:ahead] if ahead else request.tokens
    if params.repetition_penalty != 1.0:
        seen = torch.tensor(sorted(set(tokens)), dtype=torch.int64, device=device)
        values = logits[seen]
        penalty = params.repetition_penalty
        logits[seen] = torch.where(values > 0, values / penalty, values * penalty)
    if params.presence_penalty or params.frequency_penalty:
        counts = Counter(tokens[request.prompt_length :])
        ids = torch.tensor(list(counts), dtype=torch.int64, device=device)
        times = torch.tensor(list(counts.values()), device=device)
        logits[ids] -= params.presence_penalty + params.frequency_penalty * times
    for token, bias in params.logit_bias.items():
        logits[token] += bias
    if request.generated + ahead < params.min_tokens:
        for token in {*eos_ids, *params.stop_token_ids}:
            logits[token] = -torch.inf


def _logprobs(
    logits: Tensor, tokens: Tensor, temperature: np.ndarray, requests: list[Request], needs: np.ndarray
) -> tuple[list[float], dict[int, list[tuple[int, float]]]]:
    scale: Tensor | float = torch.from_numpy(temperature).to(logits.device)
    first = float(temperature[0])
    if (temperature == first).all():
        scale = first
    logprobs = token_logprobs(logits, tokens, scale)
    top: dict[int, list[tuple[int, float]]] = {}
    which = np.flatnonzero(needs & TOP).tolist()
    if which:
        index = torch.tensor(which, device=logits.device)
        count = max(requests[i].sampling.logprobs or 0 for i in which)
        best = logits[index].float().topk(min(count, logits.shape[-1]), dim=-1)
        divisor = torch.from_numpy(np.where(temperature == 0, 1.0, temperature)).to(logits.device)[
            index, None
        ]
        chosen = logits[index].gather(-1, tokens[index, None]).float()
        values = (logprobs[index, None] + (best.values - chosen) / divisor).tolist()
        for i, ids, row in zip(which, best.indices.tolist(), values, strict=True):
            keep = requests[i].sampling.logprobs
            top[i] = list(zip(ids[:keep], row[:keep], strict=True))
    return logprobs.tolist(), top
