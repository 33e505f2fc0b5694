"""A model's tokenizer, from Hugging Face's files, with the same tokens and prompts as transformers."""

import hashlib
from collections.abc import Collection, Mapping, Sequence
from copy import copy
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import tokenizers

from rondo.base.errors import InvalidRequest
from rondo.base.storage.hashing import sha256_json
from rondo.text.backend import decoder_spec, load_backend
from rondo.text.conversation import chat, special
from rondo.text.decoding import parse_decoder
from rondo.text.detokenize import ByteDetokenizer, Detokenizer, PieceDetokenizer
from rondo.text.folder import TEMPLATE_DIR, TokenizerFolder, read_folder, read_model_config
from rondo.text.pieces import ByteTable, PieceTable


class Tokenizer:
    """A tokenizer, from `Tokenizer.load(folder)` or `train_bpe(...)`. Immutable and thread-safe."""

    def __init__(
        self,
        backend: tokenizers.Tokenizer,
        folder: TokenizerFolder,
        named: Mapping[str, str],
        templates: Mapping[str, str],
        eos_ids: Sequence[int],
    ) -> None:
        self._backend = backend
        self._folder = folder
        self._shown = str(folder.path)
        self._named = dict(named)
        self._templates = dict(templates)
        self.eos_ids = tuple(eos_ids)
        # Some files contain padding and truncation settings of their author.
        backend.no_padding()
        backend.no_truncation()
        self.bos_id = self._named_id("bos_token")
        self.pad_id = self._named_id("pad_token")
        added = backend.get_added_tokens_decoder()
        self._added = [f"{index} {token!r}" for index, token in added.items()]
        self.special_ids = frozenset(index for index, token in added.items() if token.special)
        self.vocab_size = max(backend.get_vocab_size(with_added_tokens=True), max(added, default=-1) + 1)
        self._decoding = parse_decoder(decoder_spec(backend), str(folder.path / "tokenizer.json"))
        self._bytes: dict[frozenset[int], ByteTable] = {}
        self._pieces: dict[frozenset[int], PieceTable] = {}

    def called(self, name: str) -> "Tokenizer":
        """The same tokenizer with `name` in place of its folder in errors, since the path may be confidential."""
        twin = copy(self)
        twin._shown = name
        return twin

    @classmethod
    def load(cls, path: str | Path) -> "Tokenizer":
        return cls.from_files(read_folder(Path(path)), read_model_config(Path(path)))

    @classmethod
    def from_files(
        cls, folder: TokenizerFolder, model_config: Mapping[str, Any] | None = None
    ) -> "Tokenizer":
        backend = load_backend(folder)
        named = special.add_special_tokens(backend, folder)
        eos = backend.token_to_id(named["eos_token"]) if "eos_token" in named else None
        eos_ids = special.end_ids(eos, folder, model_config or {})
        return cls(backend, folder, named, special.chat_templates(folder), eos_ids)

    def save(self, path: str | Path) -> None:
        """Writes the tokenizer's files, byte for byte as loaded."""
        for name, data in self._folder.files.items():
            file = Path(path) / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(data)

    @cached_property
    def info(self) -> dict[str, Any]:
        """The settings in tokenizer_config.json, with the active chat template."""
        settings = self._folder.json("tokenizer_config.json")
        template = {} if self.chat_template is None else {"chat_template": self.chat_template}
        return {"tokenizer_class": "PreTrainedTokenizerFast"} | settings | self._named | template

    @cached_property
    def digest(self) -> str:
        """Hash that is equal for tokenizers with equal tokens for every text, as far as their files show."""
        return sha256_json(
            {
                "tokenizer": hashlib.sha256(self._folder.files["tokenizer.json"]).hexdigest(),
                "added": sorted(self._added),
                "split_special": self._backend.encode_special_tokens,
                "end": list(self.eos_ids[:1]),
            }
        )

    def _named_id(self, name: str) -> int | None:
        text = self._named.get(name)
        return None if text is None else self._backend.token_to_id(text)

    def encode(self, text: str, add_special: bool = True) -> list[int]:
        return self.encode_batch([text], add_special)[0]

    def encode_batch(self, texts: Sequence[str], add_special: bool = True) -> list[list[int]]:
        try:
            encodings = self._backend.encode_batch_fast(list(texts), add_special_tokens=add_special)
        except TypeError as error:
            # The library raises it for lone surrogates, which JSON can contain and UTF-8 cannot encode.
            raise InvalidRequest("the text is not valid Unicode: remove its lone surrogates.") from error
        return [encoding.ids for encoding in encodings]

    def decode(self, ids: Sequence[int], skip_special: bool = True) -> str:
        return self._backend.decode(list(ids), skip_special_tokens=skip_special)

    def detokenizer(
        self, skip_special: bool = True, after: Sequence[int] = (), *, keep: Collection[int] = ()
    ) -> Detokenizer:
        """Incremental detokenizer. `after` are the preceding tokens, if the text continues them: then the space of the
        first word stays, which SentencePiece drops at the start of a text. `keep` are special tokens to include."""
        detokenizer: Detokenizer
        skipped = self.special_ids.difference(keep) if skip_special else frozenset()
        if self._decoding.byte_level:
            detokenizer = ByteDetokenizer(self._byte_table(skipped).__getitem__)
        else:
            detokenizer = PieceDetokenizer(self._piece_table(skipped).get, self._decoding)
        detokenizer.push(after)
        detokenizer.flush()
        return detokenizer

    def _byte_table(self, skipped: frozenset[int]) -> ByteTable:
        if skipped not in self._bytes:
            self._bytes[skipped] = ByteTable(self._backend.id_to_token, self._decoding, skipped)
        return self._bytes[skipped]

    def _piece_table(self, skipped: frozenset[int]) -> PieceTable:
        if skipped not in self._pieces:
            self._pieces[skipped] = PieceTable(self._backend.id_to_token, self._decoding, skipped)
        return self._pieces[skipped]

    def token_bytes(self, token: int) -> bytes:
        """The bytes of one token; the name for a special token."""
        data = self._byte_table(frozenset())[token]
        if not data and self._backend.id_to_token(token) is None:
            raise InvalidRequest(f"token id {token} is not in the vocabulary of {self.vocab_size} tokens.")
        return data

    def token(self, token_id: int) -> str:
        """The token in the vocabulary's spelling, where bytes and spaces have special letters; "" if there is none."""
        return self._backend.id_to_token(token_id) or ""

    def token_id(self, token: str) -> int | None:
        return self._backend.token_to_id(token)

    @property
    def vocabulary(self) -> dict[str, int]:
        return self._backend.get_vocab(with_added_tokens=True)

    @property
    def chat_template(self) -> str | None:
        return self._templates.get("default")

    @property
    def tool_template(self) -> str | None:
        """The chat template for conversations with tools."""
        return self._templates.get("tool_use", self.chat_template)

    def with_chat_template(self, template: str) -> "Tokenizer":
        """The same tokenizer with `template` in place of its own templates."""
        chat.compile_template(template, "the given chat template")
        files = {name: data for name, data in self._folder.files.items() if not name.startswith(TEMPLATE_DIR)}
        folder = TokenizerFolder(self._folder.path, files | {"chat_template.jinja": template.encode()})
        return Tokenizer(self._backend, folder, self._named, {"default": template}, self.eos_ids)

    def render(
        self,
        messages: Sequence[chat.Message],
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        *,
        documents: Sequence[Mapping[str, Any]] | None = None,
        continue_final_message: bool | str = False,
        template_name: str | None = None,
        **variables: Any,
    ) -> str:
        """The conversation as the model's prompt. Other keywords are variables of the template."""
        return self.rendering(
            messages,
            tools,
            add_generation_prompt,
            documents=documents,
            continue_final_message=continue_final_message,
            template_name=template_name,
            **variables,
        )()

    def rendering(
        self,
        messages: Sequence[chat.Message],
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        *,
        documents: Sequence[Mapping[str, Any]] | None = None,
        continue_final_message: bool | str = False,
        template_name: str | None = None,
        **variables: Any,
    ) -> "partial[str]":
        """A deferred `render` without a reference to the tokenizer, so that another process can run it."""
        return partial(
            chat.render,
            self._template(template_name, tools),
            messages,
            tools=tools,
            documents=documents,
            add_generation_prompt=add_generation_prompt,
            continue_final_message=continue_final_message,
            variables=self._named | variables,
            where=f"the chat template of {self._shown}",
        )

    def apply_chat(
        self,
        messages: Sequence[chat.Message],
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        **options: Any,
    ) -> list[int]:
        """`render`, encoded without added special tokens, because the template writes them."""
        return self.encode(self.render(messages, tools, add_generation_prompt, **options), add_special=False)

    def apply_chat_masked(
        self,
        messages: Sequence[chat.Message],
        tools: Sequence[Mapping[str, Any]] | None = None,
        *,
        template_name: str | None = None,
        **variables: Any,
    ) -> tuple[list[int], list[bool]]:
        """The conversation's tokens, and a mask of the assistant's (`generation` blocks)."""
        text, spans = chat.render_spans(
            self._template(template_name, tools),
            messages,
            tools=tools,
            variables=self._named | variables,
            where=f"the chat template of {self._shown}",
        )
        encoding = self._backend.encode(text, add_special_tokens=False)
        mask = [False] * len(encoding.ids)
        for start, end in spans:
            first, last = encoding.char_to_token(start), encoding.char_to_token(end - 1)
            if end > start and first is not None:
                stop = len(mask) if last is None else last + 1
                mask[first:stop] = [True] * (stop - first)
        return list(encoding.ids), mask

    def _template(self, name: str | None, tools: object) -> str:
        if name is None:
            name = "tool_use" if tools is not None and "tool_use" in self._templates else "default"
        if name in self._templates:
            return self._templates[name]
        if not self._templates:
            raise InvalidRequest(
                f"the tokenizer of {self._shown} has no chat template: use plain completions, "
                "or put a chat_template.jinja into the folder.",
                param="messages",
            )
        raise InvalidRequest(
            f"there is no chat template named {name!r}; there are: {', '.join(sorted(self._templates))}.",
            param="template_name",
        )
