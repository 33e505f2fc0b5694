"""Loading of the `tokenizers` library's object from a tokenizer.json."""

import json
from typing import Any

import tokenizers

from rondo.base.errors import ModelError
from rondo.text.folder import TokenizerFolder, parse_object


def load_backend(folder: TokenizerFolder) -> tokenizers.Tokenizer:
    file = folder.path / "tokenizer.json"
    try:
        return tokenizers.Tokenizer.from_str(folder.files["tokenizer.json"].decode())
    except Exception as error:  # the library raises a bare Exception
        # Parsed only after a failure: a large vocabulary takes a third of a second.
        parse_object(folder.files["tokenizer.json"], file)
        raise ModelError(
            f"{file} is not a tokenizer that can be read ({error}). Download it again, or upgrade the "
            "tokenizers package."
        ) from error


def decoder_spec(backend: tokenizers.Tokenizer) -> dict[str, Any] | None:
    if backend.decoder is None:
        return None
    spec: dict[str, Any] = json.loads(backend.decoder.__getstate__())
    return spec
