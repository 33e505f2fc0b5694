"""Where one sample is in its grammar."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from llguidance import LLExecutor, LLMatcher

    from rondo.engine.schedule.request import Request

ENDED = ("NoExtension", "EndOfSentence")


class GrammarMatcher:
    """Follows the sample's own tokens, which only ever become more: whoever is preempted, or forks off, keeps his."""

    __slots__ = ("ends", "param", "seen", "state")

    def __init__(self, state: LLMatcher, ends: tuple[int, ...], param: str) -> None:
        self.state = state
        self.ends = ends
        self.param = param
        self.seen = 0

    @property
    def over(self) -> bool:
        """Whether nothing but an end may follow."""
        return self.state.is_stopped() and self.state.stop_reason() in ENDED

    @property
    def failure(self) -> str:
        """Why nothing may follow, where that is the grammar's own fault."""
        return self.state.get_error() if self.state.is_stopped() and not self.over else ""

    def follow(self, tokens: Sequence[int], start: int) -> None:
        """The answer so far is what `tokens` has from `start` on."""
        for token in tokens[start + self.seen :]:
            if self.state.is_stopped():
                break
            self.state.consume_token(token)
        self.seen = len(tokens) - start

    def accepts(self, tokens: Sequence[int], start: int, proposed: Sequence[int]) -> int:
        """How many of the proposals, from the first, may follow the answer."""
        self.follow(tokens, start)
        return 0 if self.state.is_stopped() else self.state.validate_tokens(list(proposed))


def follow_all(asked: Sequence[tuple[int, Request, GrammarMatcher]], executor: LLExecutor) -> None:
    """As each by itself, but in one call where there is one more token, as there is in most steps of an answer."""
    ones: list[tuple[LLMatcher, int]] = []
    for _, request, matcher in asked:
        if request.generated - matcher.seen == 1 and not matcher.state.is_stopped():
            ones.append((matcher.state, request.tokens[-1]))
            matcher.seen += 1
        else:
            matcher.follow(request.tokens, request.prompt_length)
    if ones:
        executor.consume_token_par(ones)
