"""State of one sample in its grammar."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from llguidance import LLExecutor, LLMatcher

    from rondo.engine.schedule.request import Request

ENDED = ("NoExtension", "EndOfSentence")


class GrammarMatcher:
    """Grammar state of a sample. It only advances, since tokens are only appended, and is unaffected by preemption and
    forks."""

    __slots__ = ("ends", "param", "seen", "state")

    def __init__(self, state: LLMatcher, ends: tuple[int, ...], param: str) -> None:
        self.state = state
        self.ends = ends
        self.param = param
        self.seen = 0

    @property
    def over(self) -> bool:
        """Whether only an end token may follow."""
        return self.state.is_stopped() and self.state.stop_reason() in ENDED

    @property
    def failure(self) -> str:
        """The grammar's error, if it is the reason why no token may follow."""
        return self.state.get_error() if self.state.is_stopped() and not self.over else ""

    def follow(self, tokens: Sequence[int], start: int) -> None:
        """Advances over the answer, which starts at `tokens[start]`."""
        for token in tokens[start + self.seen :]:
            if self.state.is_stopped():
                break
            self.state.consume_token(token)
        self.seen = len(tokens) - start

    def accepts(self, tokens: Sequence[int], start: int, proposed: Sequence[int]) -> int:
        """Number of leading draft tokens that the grammar accepts after the answer."""
        self.follow(tokens, start)
        return 0 if self.state.is_stopped() else self.state.validate_tokens(list(proposed))


def follow_all(asked: Sequence[tuple[int, Request, GrammarMatcher]], executor: LLExecutor) -> None:
    """Advances each matcher, in one call for all requests with one new token, as in most decode steps."""
    ones: list[tuple[LLMatcher, int]] = []
    for _, request, matcher in asked:
        if request.generated - matcher.seen == 1 and not matcher.state.is_stopped():
            ones.append((matcher.state, request.tokens[-1]))
            matcher.seen += 1
        else:
            matcher.follow(request.tokens, request.prompt_length)
    if ones:
        executor.consume_token_par(ones)
