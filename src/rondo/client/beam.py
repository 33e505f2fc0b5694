"""Beam search as vLLM does it, without the engine: which beams are asked for their next token, and which are best.

Each step takes the likeliest next tokens of every beam, and goes on with the `beam_width` likeliest of all these
continuations. One that an end token ends is done. At the end all are compared by their log-probability, divided by
their length to the power of `length_penalty`; the length is that of prompt and answer, a last end token left out.

Log-probabilities only fall, so that a beam has a best score that it can still reach. Once `beam_width` are done, those
that can reach none of their scores are not asked any more: what is found is what would be found by going on.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from rondo.base.errors import InvalidRequest
from rondo.client.limits import MAX_LOGPROBS
from rondo.client.types import FinishReason, SamplingParams

MAX_WIDTH = MAX_LOGPROBS // 2
Top = list[tuple[int, float]]
"""(token, log-probability), likeliest first."""


@dataclass(frozen=True, slots=True)
class BeamSearchParams:
    """vLLM's, by its names. Nothing is drawn, so that `temperature` changes nothing. `max_tokens=None` goes on until
    the context is full. `include_stop_str_in_output` leaves the token that ended a beam in its answer."""

    beam_width: int
    max_tokens: int | None = 16
    ignore_eos: bool = False
    temperature: float = 0.0
    length_penalty: float = 1.0
    include_stop_str_in_output: bool = False

    def __post_init__(self) -> None:
        if not 1 <= self.beam_width <= MAX_WIDTH:
            raise InvalidRequest(f"beam_width must be between 1 and {MAX_WIDTH}", param="beam_width")
        if self.max_tokens is not None and self.max_tokens < 1:
            raise InvalidRequest("max_tokens must be at least 1", param="max_tokens")
        check_length_penalty(self.length_penalty)


def check_length_penalty(penalty: float) -> None:
    if not (math.isfinite(penalty) and abs(penalty) <= 10):
        raise InvalidRequest("length_penalty must be between -10 and 10", param="length_penalty")


class Scored(NamedTuple):
    """What an engine says of a beam's next token."""

    top: Top
    weight_version: int


@dataclass(slots=True, eq=False)
class Beam:
    """`tokens` are those of prompt and answer, and `text` is theirs; `logprobs` and what follows are the answer's."""

    tokens: list[int]
    cum_logprob: float = 0.0
    logprobs: list[float] = field(default_factory=list)
    scored: list[Scored] = field(default_factory=list)
    finish_reason: FinishReason = "length"
    stop_reason: int | None = None
    text: str | None = None

    def then(self, token: int, logprob: float, scored: Scored) -> Beam:
        return Beam(
            [*self.tokens, token],
            self.cum_logprob + logprob,
            [*self.logprobs, logprob],
            [*self.scored, scored],
        )


@dataclass(slots=True)
class BeamSearchOutput:
    """What was found for one prompt, best first."""

    sequences: list[Beam]


class BeamSearch:
    """Ask an engine for the next token of each of `beams`, `take` what it says, until there are none; then `best`."""

    def __init__(
        self, prompt: Sequence[int], params: BeamSearchParams, ends: Collection[int], max_model_len: int
    ) -> None:
        self.beams = [Beam(list(prompt))]
        self._params = params
        self._ends = frozenset(ends)
        self._stops = frozenset() if params.ignore_eos else self._ends
        # Each end token may take a place among the likeliest.
        self._considered = params.beam_width + max(params.beam_width, min(len(self._ends), MAX_WIDTH))
        room = max(1, max_model_len - len(prompt))
        self._longest = len(prompt) + min(params.max_tokens or room, room)
        self._done: list[Beam] = []

    def sampling(self, logprobs: int = 0) -> SamplingParams:
        """Of the request for each beam's next token; `logprobs` are wanted at least."""
        return SamplingParams(
            max_tokens=1,
            temperature=0.0,
            logprobs=max(self._considered, logprobs),
            logprobs_mode="raw",
            ignore_eos=True,
            detokenize=False,
        )

    def take(self, answers: Sequence[Scored]) -> None:
        """What the engine said, in the order of `beams`."""
        going: list[tuple[float, int, float, Beam, Scored]] = []
        for beam, scored in zip(self.beams, answers, strict=True):
            for token, logprob in scored.top[: self._considered]:
                if token in self._stops:
                    ended = beam.then(token, logprob, scored)
                    ended.finish_reason, ended.stop_reason = "stop", token
                    self._done.append(ended)
                else:
                    going.append((beam.cum_logprob + logprob, token, logprob, beam, scored))
        likeliest = heapq.nlargest(self._params.beam_width, going, key=lambda each: each[0])
        beams = [beam.then(token, logprob, scored) for _, token, logprob, beam, scored in likeliest]
        self._done = self._ranked(self._done)
        if beams and len(beams[0].tokens) == self._longest:
            self._finish(beams)
        else:
            self.beams = [beam for beam in beams if self._has_chances(beam)]

    def abort(self) -> None:
        """No more is to come: what there is ends as it is."""
        for beam in self.beams:
            beam.finish_reason = "abort"
        self._finish(self.beams)

    def best(self) -> list[Beam]:
        """At most `beam_width`, best first."""
        return [self._shown(beam) for beam in self._done]

    def _shown(self, beam: Beam) -> Beam:
        """Without the token that ended it, where that is not wanted."""
        if beam.finish_reason != "stop" or self._params.include_stop_str_in_output:
            return beam
        return replace(beam, tokens=beam.tokens[:-1], logprobs=beam.logprobs[:-1], scored=beam.scored[:-1])

    def _finish(self, beams: list[Beam]) -> None:
        self._done, self.beams = self._ranked([*self._done, *beams]), []

    def _ranked(self, beams: list[Beam]) -> list[Beam]:
        return sorted(beams, key=self._score, reverse=True)[: self._params.beam_width]

    def _score(self, beam: Beam) -> float:
        return self._at(beam, len(beam.tokens) - (beam.tokens[-1] in self._ends))

    def _at(self, beam: Beam, length: int) -> float:
        return beam.cum_logprob / math.pow(max(length, 1), self._params.length_penalty)

    def _has_chances(self, beam: Beam) -> bool:
        """Whether it may still come to more than the worst of those that are done."""
        if len(self._done) < self._params.beam_width:
            return True
        # Its log-probability at most stays; its length at the end is between these.
        most = max(self._at(beam, len(beam.tokens)), self._at(beam, self._longest))
        return most > self._score(self._done[-1])
