"""A conversation that grows turn by turn, as tokens: what a model sampled stays the tokens that it sampled.

After a model's turn only what the chat template writes behind it is tokenized. Where the template writes the past
otherwise once more follows (it leaves out thoughts, say), there is no such difference, and whoever asks is told.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rondo.text.conversation.messages import adapt_messages
from rondo.text.tokenizer import Tokenizer

Message = Mapping[str, Any]

RECENT = 16
"""So many tokens before a text tell how it begins, in tokenizers whose first word is written otherwise."""


@dataclass(frozen=True)
class Prompt:
    messages: tuple[Message, ...]
    text: str
    """As the template writes it. What the model said itself may stand in `ids` with other blanks."""
    ids: list[int]


@dataclass(frozen=True)
class ParsedTurn:
    """A model's turn: its tokens, with the one that ended it, and what was read in them."""

    ids: Sequence[int]
    words: Sequence[str]
    """Each text, thought and name of a call in it, which a template that keeps the past writes again."""


@dataclass(frozen=True)
class Dialogue:
    """Conversations with one model. `tools` and `variables` are for its chat template."""

    tokenizer: Tokenizer
    tools: Sequence[Mapping[str, Any]] = ()
    variables: Mapping[str, Any] = field(default_factory=dict)

    def begin(self, messages: Sequence[Message]) -> Prompt:
        text = self._render(messages, True)
        return Prompt(tuple(messages), text, self.tokenizer.encode(text, add_special=False))

    def follow(self, prompt: Prompt, answer: ParsedTurn, messages: Sequence[Message]) -> Prompt | None:
        """The prompt of `messages`: those of `prompt`, the answer to it as a message, and what came then.

        Its tokens are those of `prompt` and `answer`, and then the difference. None if the template does not write
        `messages` so that it goes on from there.
        """
        whole = self._render(messages, True)
        said = prompt.text + self._said(prompt.ids, answer.ids)
        if whole.startswith(said):
            rest: str | None = whole[len(said) :]
        else:
            rest = self._behind(prompt, answer, messages, whole)
        added = None if rest is None else self._encode_after(answer.ids, rest)
        return None if added is None else Prompt(tuple(messages), whole, [*prompt.ids, *answer.ids, *added])

    def _behind(
        self, prompt: Prompt, answer: ParsedTurn, messages: Sequence[Message], whole: str
    ) -> str | None:
        """What follows the turn, where the template writes it in other blanks or another order of keys than the model
        did. Whatever was said must be in it still, and it must stay what it is when more follows."""
        turn = self._render(messages[: len(prompt.messages) + 1], False)
        if not (turn.startswith(prompt.text) and whole.startswith(turn)):
            return None
        body = turn[len(prompt.text) :]
        if not all(word.strip() in body for word in answer.words):
            return None
        end = self._text_of_end(answer.ids)
        _, found, blank = body.rpartition(end) if end else ("", "", "")
        if not found or blank.strip():
            return None
        return blank + whole[len(turn) :]

    def _encode_after(self, before: Sequence[int], rest: str) -> list[int] | None:
        """`rest` is encoded behind the token that ends the turn, since some tokenizers treat a beginning otherwise.
        Where nothing ended it, `rest` must begin with a special token: no other has a place of its own in a text."""
        end = self._text_of_end(before)
        if end:
            first, *ids = self.tokenizer.encode(end + rest, add_special=False)
            return ids if first == before[-1] else None
        ids = self.tokenizer.encode(rest, add_special=False)
        return ids if ids and ids[0] in self.tokenizer.special_ids else None

    def _said(self, before: Sequence[int], ids: Sequence[int]) -> str:
        text = self.tokenizer.detokenizer(skip_special=False, after=before[-RECENT:])
        return text.push(list(ids)) + text.flush()

    def _text_of_end(self, ids: Sequence[int]) -> str:
        """Of the special token that ended a turn; empty for one that was cut off."""
        return self.tokenizer.token(ids[-1]) if ids and ids[-1] in self.tokenizer.special_ids else ""

    def _render(self, messages: Sequence[Message], ask: bool) -> str:
        template = (self.tokenizer.tool_template if self.tools else self.tokenizer.chat_template) or ""
        return self.tokenizer.render(
            adapt_messages(messages, template),
            list(self.tools) or None,
            add_generation_prompt=ask,
            **self.variables,
        )
