"""`rondo model quantize`: a model whose weights take a half or a quarter of the memory."""

import argparse
import json
from pathlib import Path

from rondo.base.errors import InvalidRequest, NotFound
from rondo.base.storage.paths import path_of
from rondo.base.units import human_bytes
from rondo.cli.options.arguments import VerbParser
from rondo.cli.view.progress import byte_progress
from rondo.models.quantized.quantize.methods import METHODS


def run(argv: list[str]) -> int:
    arguments = _parser().parse_args(argv)

    from rondo.models.quantized.folder import quantize_folder
    from rondo.models.quantized.quantize.making import QuantizationRecipe
    from rondo.models.store import name_of, resolve

    recipe = QuantizationRecipe(arguments.method, arguments.group_size)
    source = resolve(arguments.model)
    target = _target(arguments.out or f"{name_of(source)}-{arguments.method}")
    texts = None if arguments.data is None else _texts(path_of(arguments.data, "--data"))
    with byte_progress(f"{arguments.model} as {arguments.method}") as report:
        found = quantize_folder(source, target, recipe, texts, replace=arguments.replace, report=report)
    if arguments.json:
        answer = {**vars(found), "path": str(found.path), "method": arguments.method}
        print(json.dumps(answer))
        return 0
    share = found.bytes_after / found.bytes_before
    print(f"weights     {human_bytes(found.bytes_before)} -> {human_bytes(found.bytes_after)} ({share:.0%})")
    if found.perplexity_before is None or found.perplexity_after is None:
        print("perplexity  not measured: the model has no tokenizer")
    else:
        more = found.perplexity_after / found.perplexity_before - 1
        print(
            f"perplexity  {found.perplexity_before:.4g} -> {found.perplexity_after:.4g} ({more:+.2%}), "
            f"on {found.held_out_tokens:,} tokens that were held out"
        )
    print(f"{target.name} is in {target}")
    return 0


def _parser() -> VerbParser:
    parser = VerbParser(
        "rondo model quantize", "Write a model with weights of 4 or 8 bits, for Rondo, vLLM, transformers."
    )
    parser.add_argument("model", metavar="MODEL", help="a model's name or folder, or a job's name or hash")
    parser.add_argument(
        "--method",
        choices=sorted(METHODS),
        required=True,
        help="; ".join(f"{name}: {told}" for name, told in METHODS.items()),
    )
    parser.add_argument(
        "--group-size",
        type=_group_size,
        metavar="N",
        help="of awq and gptq: columns that share a scale (128); -1 is a whole row",
    )
    parser.add_argument(
        "--data",
        metavar="FILE",
        help="text to calibrate with and to measure on: .jsonl or .txt; a built-in one if not given",
    )
    parser.add_argument(
        "--out", metavar="NAME", help="a name to keep it under, or a folder; MODEL-METHOD by default"
    )
    parser.add_argument("--replace", action="store_true", help="replace an existing model")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    return parser


def _group_size(text: str) -> int:
    try:
        size = int(text)
    except ValueError:
        size = 0
    if size != -1 and (size < 8 or size % 8):
        raise argparse.ArgumentTypeError(f"{text!r} is not a multiple of 8, or -1 for whole rows")
    return size


def _target(out: str) -> Path:
    from rondo.models.store import NAME, place

    return place(out) if NAME.fullmatch(out) else path_of(out, "--out")


def _texts(path: Path) -> list[str]:
    if path.suffix != ".txt":
        from rondo.data.input.sources import read_records

        return [_text(record) for record in read_records(path)]
    try:
        return [path.read_text("utf-8")]
    except OSError as error:
        raise NotFound(f"cannot read {path}: {error.strerror}", param="data") from error
    except UnicodeDecodeError as error:
        raise InvalidRequest(f"{path} is not text in UTF-8", param="data") from error


def _text(record: dict[str, object]) -> str:
    """All text of a record."""
    match record:
        case {"messages": list(messages)}:
            said = (message.get("content") for message in messages)
            return "\n".join(content for content in said if isinstance(content, str))
        case {"prompt": str(prompt), "completion": str(completion)}:
            return prompt + completion
        case _:
            return str(record["text"])
