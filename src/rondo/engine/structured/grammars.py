"""Cache of compiled grammars: each is compiled once, while steps continue, and each sample has its own matcher."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

from rondo.base.errors import InvalidRequest, Overloaded
from rondo.client.protocol.refusals import renamed
from rondo.client.structured import StructuredOutputsParams
from rondo.engine.structured.checker import Checker
from rondo.engine.structured.matcher import GrammarMatcher
from rondo.engine.structured.vocabulary import Vocabulary
from rondo.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer

KEPT = 128
"""Number of cached grammars."""
FIRST_SECONDS = 0.2
"""Time limit for the first token's mask; later masks would delay the steps of all requests."""

Share = Callable[[str, Any], None]


class Grammars:
    """`start` and `ready` may be called from any thread."""

    def __init__(self, vocab_size: int, ends: Sequence[int], max_waiting: int) -> None:
        self._vocab_size = vocab_size
        self._ends = tuple(ends)
        self._max_waiting = max_waiting
        self._waiting = 0
        self._tokenizer: Tokenizer | None = None
        self._vocabulary: Vocabulary | None = None
        self._words: LLTokenizer | None = None
        self._compiled: OrderedDict[StructuredOutputsParams, Future[LLMatcher]] = OrderedDict()
        self._lock = threading.Lock()
        self._making = threading.Lock()
        self._local = threading.local()
        self._checkers: list[Checker] = []
        self._pool: ThreadPoolExecutor | None = None
        self.share: Share | None = None
        """Callback that forwards the vocabulary and each valid grammar to other ranks."""

    def set_tokenizer(self, tokenizer: object) -> None:
        """Sets the tokenizer whose tokens the grammars constrain."""
        self._tokenizer = tokenizer if isinstance(tokenizer, Tokenizer) else None

    def set_vocabulary(self, vocabulary: Vocabulary) -> None:
        """Sets the vocabulary, if another process has the tokenizer."""
        self._vocabulary = vocabulary

    def start(self, params: StructuredOutputsParams, checked: str | None = None) -> Future[LLMatcher]:
        """Starts the compilation if necessary and returns its future. `checked` is the grammar as validated by another
        rank."""
        if self._tokenizer is None and self._vocabulary is None:
            raise params.refusal("needs an engine with a tokenizer")
        if not self._ends:
            raise params.refusal("needs a model with a token that ends the answer")
        with self._lock:
            future = self._compiled.get(params)
            fresh = future is None
            if future is None:
                if self._pool is None:
                    self._pool = ThreadPoolExecutor(min(2, os.cpu_count() or 1), "rondo-grammars")
                future = self._compiled[params] = self._pool.submit(self._compile, params, checked)
            self._compiled.move_to_end(params)
            while len(self._compiled) > KEPT:
                self._compiled.popitem(last=False)
        if fresh:
            # Outside the lock: the callback runs at once if the future is done.
            future.add_done_callback(partial(self._forget_if_refused, params))
        return future

    def has(self, params: StructuredOutputsParams | None) -> bool:
        """Whether a request with this grammar need not wait."""
        return params is None or self.start(params).done()

    async def ready(self, params: StructuredOutputsParams | None) -> None:
        """Waits until the grammar is compiled; other requests continue meanwhile."""
        if self.has(params):
            return
        assert params is not None
        if self._waiting >= self._max_waiting:
            raise Overloaded(
                f"{self._waiting} requests wait for grammars to be compiled already. Try again later.",
                code="queue_full",
            )
        self._waiting += 1
        try:
            # Others may wait for the same grammar: a cancelled request does not cancel it.
            with _own_name(params):
                await asyncio.shield(asyncio.wrap_future(self.start(params)))
        finally:
            self._waiting -= 1

    def matcher(self, params: StructuredOutputsParams) -> GrammarMatcher:
        """A matcher at the beginning of an answer; waits for the compilation if necessary."""
        with _own_name(params):
            compiled = self.start(params).result()
        return GrammarMatcher(compiled.deep_copy(), self._ends, params.param)

    def close(self) -> None:
        for checker in self._checkers:
            checker.close()
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)

    def _forget_if_refused(self, params: StructuredOutputsParams, future: Future[LLMatcher]) -> None:
        if future.cancelled() or future.exception() is not None:
            with self._lock:
                if self._compiled.get(params) is future:
                    del self._compiled[params]

    # The methods below run in the pool's threads.

    def _compile(self, params: StructuredOutputsParams, checked: str | None) -> LLMatcher:
        from llguidance import LLMatcher

        words = self._known_words()
        grammar = self._checker().check(params) if checked is None else checked
        if self.share is not None:
            self.share("start_grammar", (params, grammar))
        compiled = LLMatcher(words, grammar, log_level=0)
        started = time.thread_time()
        # The copies share the result of this computation.
        compiled.compute_bitmask()
        if compiled.is_error():
            why = compiled.get_error().partition("\n")[0]
            why = "no text obeys it" if why.startswith("NoExtension") else why
            raise params.refusal(f"cannot be enforced: {why}")
        if checked is None and time.thread_time() - started > FIRST_SECONDS:
            raise params.refusal("is too large: finding the next token takes too long")
        return compiled

    def _known_words(self) -> LLTokenizer:
        with self._making:
            if self._vocabulary is None:
                assert self._tokenizer is not None
                self._vocabulary = Vocabulary.of(self._tokenizer, self._vocab_size, self._ends)
                if self.share is not None:
                    self.share("set_vocabulary", (self._vocabulary,))
            if self._words is None:
                self._words = self._vocabulary.compile()
            return self._words

    def _checker(self) -> Checker:
        if not hasattr(self._local, "checker"):
            self._local.checker = Checker()
            self._checkers.append(self._local.checker)
        checker: Checker = self._local.checker
        return checker


@contextmanager
def _own_name(params: StructuredOutputsParams) -> Iterator[None]:
    """Names the request's own field in an error, since the grammar may have been compiled under another field."""
    try:
        yield
    except InvalidRequest as error:
        raise renamed(error, error.param, params.param) from error
