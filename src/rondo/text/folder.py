"""The tokenizer's files in a Hugging Face model folder, or made from a GGUF file."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rondo.base.errors import ModelError
from rondo.base.storage.files import parse_json
from rondo.base.storage.gguf import is_gguf, read_gguf

TEMPLATE_DIR = "additional_chat_templates"

_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template.jinja",
    "chat_template.json",
    "tokenizer.model",
    "vocab.json",
    "merges.txt",
    "generation_config.json",
)


@dataclass(frozen=True)
class TokenizerFolder:
    """The files as bytes, so that a save is byte-equal even if the original folder was deleted."""

    path: Path
    files: dict[str, bytes]

    def json(self, name: str) -> dict[str, Any]:
        """A file as an object; an absent file is an empty one."""
        if name not in self.files:
            return {}
        return parse_object(self.files[name], self.path / name)


def read_folder(path: Path) -> TokenizerFolder:
    if is_gguf(path):
        from rondo.text.gguf.reading import tokenizer_files

        return TokenizerFolder(path, tokenizer_files(read_gguf(path)))
    if not path.is_dir():
        raise ModelError(f"{path} is not a folder. Give the folder that holds tokenizer.json.")
    names = [name for name in _FILES if (path / name).is_file()]
    if "tokenizer.json" not in names:
        raise ModelError(_without_tokenizer(path, names))
    names += sorted(f"{TEMPLATE_DIR}/{file.name}" for file in (path / TEMPLATE_DIR).glob("*.jinja"))
    try:
        return TokenizerFolder(path, {name: (path / name).read_bytes() for name in names})
    except OSError as error:
        raise ModelError(
            f"cannot read the tokenizer: {error}. Check the file and its permissions."
        ) from error


def read_model_config(path: Path) -> dict[str, Any]:
    """The model's config.json, which is read for its end-of-sequence ids."""
    file = path / "config.json"
    return parse_object(file.read_bytes(), file) if file.is_file() else {}


def parse_object(data: bytes, file: Path) -> dict[str, Any]:
    value = parse_json(data, file)
    if not isinstance(value, dict):
        raise ModelError(f"{file} must hold a JSON object. Download it again.")
    return value


def _without_tokenizer(path: Path, names: list[str]) -> str:
    other = next((name for name in ("tokenizer.model", "vocab.json") if name in names), None)
    if other is None:
        return f"{path} has no tokenizer.json. Copy the tokenizer's files there from the model's source."
    return (
        f"{path} has {other} but no tokenizer.json. Make one with transformers: "
        f"AutoTokenizer.from_pretrained({str(path)!r}).save_pretrained({str(path)!r})"
    )
