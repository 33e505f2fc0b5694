"""Batched sampling; unrequested steps are not computed.

A request's token is a function of its own logits, seed and position. Log-probabilities use the learner's function, on
the distribution before top-k, top-p, min-p, penalties and biases.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rondo.engine.schedule.randomness import uniforms
from rondo.engine.schedule.request import Request
from rondo.engine.structured.masks import Masker, Masks
from rondo.ops import NO_TOKEN, choose_tokens, draw, token_logprobs
from rondo.ops.vocabulary.draw import masked

Ints = NDArray[np.int64]

FILTERS, EDITS, LOGPROBS, TOP, RAW, MASKED = 1, 2, 4, 8, 16, 32
ALL = 2**31
"""A top-k larger than every vocabulary."""
LARGEST_DRAW = np.float32(1 - 2**-24)


@dataclass(frozen=True, slots=True)
class Sampled:
    tokens: list[int]
    """Sampled tokens; NO_TOKEN where the model's logits are not finite or no token is allowed."""
    logprobs: list[float] | None
    top: dict[int, list[tuple[int, float]]]
    """Top alternatives, for the rows that requested them."""
    excluded: frozenset[int] = frozenset()
    """Rows in which the request's constraints leave no token."""

    def only(self, rows: list[int]) -> Sampled:
        logprobs = None if self.logprobs is None else [self.logprobs[row] for row in rows]
        top = {i: self.top[row] for i, row in enumerate(rows) if row in self.top}
        excluded = frozenset(i for i, row in enumerate(rows) if row in self.excluded)
        return Sampled([self.tokens[row] for row in rows], logprobs, top, excluded)


@dataclass(frozen=True, slots=True)
class SamplingBatch:
    """Sampling parameters of a step, one entry per row of the logits; copied, since requests may change while a step
    runs."""

    requests: list[Request]
    ahead: Ints | None
    needs: Ints
    wanted: int
    """Union of the rows' needs."""
    temperature: np.ndarray
    limits: tuple[np.ndarray, ...]
    """top_k, top_p and min_p, if any row has a filter."""
    seeds: np.ndarray
    positions: np.ndarray
    masks: Masks | None = None

    @property
    def scored_at(self) -> np.ndarray:
        """Temperature of the distribution for a row's log-probabilities; 0 counts as 1."""
        if not self.wanted & RAW:
            return self.temperature
        return np.where(self.needs & RAW, np.float32(1), self.temperature)


@dataclass(frozen=True, slots=True)
class Top:
    """Likeliest tokens of some rows and their log-probabilities [W, K]; `rows[i]` uses the first `counts[i]`."""

    rows: list[int]
    counts: list[int]
    tokens: Tensor
    logprobs: Tensor

    def read(self) -> dict[int, list[tuple[int, float]]]:
        each = zip(self.rows, self.counts, self.tokens.tolist(), self.logprobs.tolist(), strict=True)
        return {row: list(zip(ids[:count], values[:count], strict=True)) for row, count, ids, values in each}


@dataclass(frozen=True, slots=True)
class Drawn:
    """Sampled tokens, still on the device."""

    tokens: Tensor
    logprobs: Tensor | None = None
    top: Top | None = None
    source: Tensor | None = None
    """The logits from which tokens were chosen, if requests edited them or have `masks`."""
    masks: Tensor | None = None

    def read(self) -> Sampled:
        """Waits for the device."""
        logprobs = None if self.logprobs is None else self.logprobs.tolist()
        tokens = self.tokens.tolist()
        return Sampled(tokens, logprobs, {} if self.top is None else self.top.read(), self._excluded(tokens))

    def _excluded(self, tokens: list[int]) -> frozenset[int]:
        if self.source is None or NO_TOKEN not in tokens:
            return frozenset()
        left = self.source if self.masks is None else masked(self.source, self.masks)
        return frozenset(torch.nonzero(left.amax(-1) == -torch.inf).flatten().tolist())


class Sampler:
    """Stores each running request's parameters by row, so that a step gathers them without a loop."""

    def __init__(self, max_num_seqs: int, stop_ids: tuple[int, ...] = (), vocab: int = 0) -> None:
        self.eos_ids = stop_ids
        self._masker = Masker(vocab)
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
            + MASKED * (params.structured_outputs is not None)
        )

    def batch(self, requests: list[Request], ahead: Ints | None = None) -> SamplingBatch:
        """Gathers the parameters of a step. A request may occur several times, each time after `ahead` of its draft
        tokens."""
        rows = np.array([request.row for request in requests], dtype=np.int64)
        positions = np.array([len(request.tokens) for request in requests], dtype=np.int64)
        needs = self._needs[rows]
        wanted = int(np.bitwise_or.reduce(needs))
        limits = (self._top_k[rows], self._top_p[rows], self._min_p[rows]) if wanted & FILTERS else ()
        return SamplingBatch(
            requests,
            ahead,
            needs,
            wanted,
            self._temperature[rows],
            limits,
            self._seed[rows],
            (positions if ahead is None else positions + ahead).astype(np.uint64),
            self._masker.start(requests, needs & MASKED) if wanted & MASKED else None,
        )

    def sample(self, logits: Tensor, batch: SamplingBatch) -> Drawn:
        """Samples from logits [R, V], one row per request."""
        masks = _found(batch, logits)
        if not batch.wanted & (EDITS | FILTERS):
            return self._sample_plain(logits, batch, masks)
        edited = self._edit(logits, batch, masks)
        tokens = _choose(edited, batch)
        source = edited if batch.wanted & (EDITS | MASKED) else None
        if not batch.wanted & LOGPROBS:
            return Drawn(tokens, source=source)
        logprobs = token_logprobs(logits, tokens.clamp(min=0), _on(logits, batch.scored_at))
        return Drawn(tokens, logprobs, _top(logits, tokens, logprobs, batch), source)

    def _sample_plain(self, logits: Tensor, batch: SamplingBatch, masks: Tensor | None) -> Drawn:
        """Single-pass sampling, when all tokens come from the distributions of their log-probabilities, or from masked
        versions of them."""
        scales = None
        if batch.wanted & LOGPROBS:
            scales = _on(logits, 1 / np.where(batch.scored_at == 0, np.float32(1), batch.scored_at))
        logits = logits.float()
        tokens, logprobs = choose_tokens(logits, *_fate(logits, batch), scales, masks)
        top = None if logprobs is None else _top(logits, tokens, logprobs, batch)
        return Drawn(tokens, logprobs, top, None if masks is None else logits, masks)

    @torch.inference_mode()
    def choose(self, logits: Tensor, batch: SamplingBatch) -> Tensor:
        """Tokens only, without log-probabilities."""
        return _choose(self._edit(logits, batch, _found(batch, logits)), batch)

    def _edit(self, logits: Tensor, batch: SamplingBatch, masks: Tensor | None) -> Tensor:
        """Applies grammars, biases and penalties; on a copy if log-probabilities need the original logits."""
        given, logits = logits, logits.float()
        if batch.wanted & (EDITS | MASKED) and batch.wanted & LOGPROBS and logits is given:
            logits = logits.clone()
        if masks is not None:
            # Row by row: the row stays in the CPU cache, and nothing is gathered.
            for i in np.flatnonzero(batch.needs & MASKED).tolist():
                logits[i : i + 1] = masked(logits[i : i + 1], masks[i : i + 1])
        for i in np.flatnonzero(batch.needs & EDITS).tolist():
            ahead = 0 if batch.ahead is None else int(batch.ahead[i])
            edit_row(logits[i], batch.requests[i], self.eos_ids, ahead)
        return logits


def _found(batch: SamplingBatch, logits: Tensor) -> Tensor | None:
    return None if batch.masks is None else batch.masks.on(logits.device)


def _choose(logits: Tensor, batch: SamplingBatch) -> Tensor:
    temperatures, draws = _fate(logits, batch)
    tokens, _ = choose_tokens(logits, temperatures, draws)
    if batch.wanted & FILTERS:
        which = np.flatnonzero(batch.needs & FILTERS)
        index = torch.from_numpy(which).to(logits.device)
        probs = torch.softmax(logits[index] / temperatures[index, None], dim=-1)
        top_k, top_p, min_p = (torch.from_numpy(limit[which]) for limit in batch.limits)
        tokens[index] = draw_filtered(probs, draws[index], top_k, top_p, min_p)
    return tokens


def _fate(logits: Tensor, batch: SamplingBatch) -> tuple[Tensor, Tensor]:
    """Temperature and random number of each row."""
    if not batch.temperature.any():
        return (_on(logits, batch.temperature),) * 2
    draws = uniforms(batch.seeds, batch.positions).astype(np.float32)
    # The largest draws round up to 1, which is beyond the end of the distribution.
    return _on(logits, batch.temperature), _on(logits, np.minimum(draws, LARGEST_DRAW))


def _on(logits: Tensor, numbers: np.ndarray) -> Tensor:
    return torch.from_numpy(numbers).to(logits.device)


def draw_filtered(probs: Tensor, draws: Tensor, top_k: Tensor, top_p: Tensor, min_p: Tensor) -> Tensor:
    """Like `draw`, after top-k, then top-p, then min-p; their neutral values are 0, 1 and 0."""
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
    """Edits a row in place: repetition penalty over prompt and answer, presence and frequency penalties over the
    answer, then biases.

    A row after draft tokens counts only if they are accepted, so the first `ahead` draft tokens are part of the answer.
    """
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
    if params.logit_bias:
        ids = torch.tensor(list(params.logit_bias), dtype=torch.int64, device=device)
        logits[ids] += torch.tensor(list(params.logit_bias.values()), dtype=logits.dtype, device=device)
    if params.allowed_token_ids is not None:
        allowed = torch.tensor(params.allowed_token_ids, dtype=torch.int64, device=device)
        kept = logits[allowed]
        logits.fill_(-torch.inf)
        logits[allowed] = kept
    if params.bad_word_ids:
        answer = tokens[request.prompt_length :]
        last = [ids[-1] for ids in params.bad_word_ids if _ends_with(answer, ids[:-1])]
        logits[last] = -torch.inf
    if request.generated + ahead < params.min_tokens:
        ends = sorted({*eos_ids, *params.stop_token_ids})
        kept = logits[ends].clone()
        logits[ends] = -torch.inf
        if request.matcher is not None and logits.amax() == -torch.inf:
            logits[ends] = kept  # the grammar is complete


def _ends_with(tokens: list[int], end: tuple[int, ...]) -> bool:
    return not end or tuple(tokens[-len(end) :]) == end


def _top(logits: Tensor, tokens: Tensor, logprobs: Tensor, batch: SamplingBatch) -> Top | None:
    which = np.flatnonzero(batch.needs & TOP).tolist() if batch.wanted & TOP else []
    if not which:
        return None
    index = torch.tensor(which, device=logits.device)
    counts = [batch.requests[i].sampling.logprobs or 0 for i in which]
    best = logits[index].float().topk(min(max(counts), logits.shape[-1]), dim=-1)
    divisor = _on(logits, np.where(batch.scored_at == 0, np.float32(1), batch.scored_at))[index, None]
    chosen = logits[index].gather(-1, tokens.clamp(min=0)[index, None]).float()
    values = (logprobs[index, None] + (best.values - chosen) / divisor).clamp_(max=0)
    return Top(which, counts, best.indices, values)
