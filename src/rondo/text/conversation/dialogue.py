"""A multi-turn conversation as tokens: sampled tokens are never re-tokenized.

After a model's turn only the text that the chat template adds behind it is tokenized. If the template renders earlier
turns differently once more messages follow (for example, it drops reasoning), the conversation cannot be extended, and
`follow` returns None.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rondo.text.conversation.messages import adapt_messages
from rondo.text.tokenizer import Tokenizer

Message = Mapping[str, Any]

RECENT = 16
"""Number of preceding tokens passed to the detokenizer, because some tokenizers decode a text's first word
differently."""


@dataclass(frozen=True)
class Prompt:
    messages: tuple[Message, ...]
    text: str
    """The text rendered by the template. In the model's own turns, `ids` may differ from it in whitespace."""
    ids: list[int]


@dataclass(frozen=True)
class ParsedTurn:
    """A model's turn: its tokens including the end token, and the texts parsed from them."""

    ids: Sequence[int]
    words: Sequence[str]
    """Texts, reasoning and call names in the turn, which a template without omissions renders again."""


@dataclass(frozen=True)
class Dialogue:
    """Conversations with one model. `tools` and `variables` are arguments of its chat template."""

    tokenizer: Tokenizer
    tools: Sequence[Mapping[str, Any]] = ()
    variables: Mapping[str, Any] = field(default_factory=dict)

    def begin(self, messages: Sequence[Message]) -> Prompt:
        text = self._render(messages, True)
        return Prompt(tuple(messages), text, self.tokenizer.encode(text, add_special=False))

    def follow(self, prompt: Prompt, answer: ParsedTurn, messages: Sequence[Message]) -> Prompt | None:
        """The prompt of `messages`: the messages of `prompt`, the answer to it, and later messages.

        Its tokens are the tokens of `prompt` and `answer`, followed by the difference. None if the template does not
        render `messages` as a continuation of them.
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
        """The text after the turn, if the template renders the turn with other whitespace or another order of keys than
        the model. All texts of the turn must be in the rendering, and the rendering must not change when messages
        follow."""
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
        """Encodes `rest` behind the token that ends the turn, because some tokenizers encode the start of a text
        differently. If the turn was cut off, `rest` must start with a special token, which is encoded independently of
        context."""
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
        """The text of the special token at the end of a turn; empty for a turn that was cut off."""
        return self.tokenizer.token(ids[-1]) if ids and ids[-1] in self.tokenizer.special_ids else ""

    def _render(self, messages: Sequence[Message], ask: bool) -> str:
        template = (self.tokenizer.tool_template if self.tools else self.tokenizer.chat_template) or ""
        return self.tokenizer.render(
            adapt_messages(messages, template),
            list(self.tools) or None,
            add_generation_prompt=ask,
            **self.variables,
        )
