"""`rondo data prepare|inspect|preview`: text into shards of tokens, once, for every training that reads them."""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from rondo.base.storage.paths import path_of
from rondo.base.units import human_bytes, human_count
from rondo.cli.options.arguments import VerbParser, positive_count
from rondo.cli.options.verbs import Verb, run_verb
from rondo.cli.view.fetch import fetch_data
from rondo.cli.view.progress import token_progress
from rondo.data.input.detection import FORMAT_NAMES

if TYPE_CHECKING:
    from rondo.data.storage.index import Index

USAGE = """usage: rondo data VERB [options]

  prepare  tokenize text into shards that training reads, and WebDataset too
  inspect  what prepared shards hold, and whether they are whole
  preview  the format of a file's records, and how a model reads them

  rondo data VERB --help   what a verb takes"""

FIELDS: tuple[str, ...] = (
    *(
        "text",
        "messages",
        "conversations",
        "system",
        "tools",
        "prompt",
        "completion",
        "instruction",
        "output",
    ),
    *("question", "answer", "chosen", "rejected", "label"),
)


def run(argv: list[str]) -> int:
    return run_verb("rondo data", VERBS, USAGE, argv)


def _prepare(argv: list[str]) -> int:
    arguments = _prepare_parser().parse_args(argv)

    from rondo.data.input.formats import Form
    from rondo.data.preparation.prepare import PrepareRequest, prepare

    request = PrepareRequest(
        sources=arguments.sources,
        tokenizer=_tokenizer(arguments.tokenizer),
        out=arguments.out,
        workers=arguments.workers,
        form=Form(dict(arguments.field), arguments.text_unit),
        close=not arguments.no_separator,
        max_broken=arguments.max_broken,
        part_bytes=arguments.part_size,
        shard_bytes=arguments.shard_size,
        replace=arguments.replace,
    )
    fetch_data(arguments.sources)
    with token_progress("preparing") as report:
        index = prepare(request, report)
    if arguments.json:
        print(json.dumps({"path": arguments.out, **_facts(index)}))
    else:
        _show(index)
        print(arguments.out)
    return 0


def _tokenizer(name: str) -> Path:
    """A folder may hold a tokenizer and no model."""
    folder = path_of(name, "--tokenizer")
    if (folder / "tokenizer.json").is_file():
        return folder

    from rondo.hub.models import pull_tokenizer
    from rondo.hub.names import hub_name
    from rondo.models.store import resolve

    found = None if folder.exists() else hub_name(name)
    return resolve(name) if found is None else pull_tokenizer(found)


def _prepare_parser() -> VerbParser:
    parser = VerbParser(
        "rondo data prepare", "Tokenize text into shards. The same command again goes on where it stopped."
    )
    parser.add_argument(
        "sources",
        metavar="SOURCE",
        nargs="+",
        help="a .jsonl, .json, .csv, .tsv, .txt (also .gz, .zst) or .parquet file, or a folder of them, here or at "
        "s3://; or ORG/NAME[@REVISION][:SPLIT] of the Hugging Face Hub",
    )
    parser.add_argument(
        "--tokenizer",
        metavar="MODEL",
        required=True,
        help="the model whose tokenizer it is: a name or a folder",
    )
    parser.add_argument(
        "--out", metavar="FOLDER", required=True, help="where the shards go: a folder or s3://bucket/path"
    )
    parser.add_argument(
        "--workers",
        type=positive_count,
        default=os.cpu_count() or 1,
        metavar="N",
        help="processes (one a core)",
    )
    _add_field(parser)
    parser.add_argument(
        "--text-unit",
        choices=("file", "line"),
        default="file",
        help="document unit of plain text (file)",
    )
    parser.add_argument(
        "--no-separator", action="store_true", help="no end-of-text token after each document"
    )
    parser.add_argument(
        "--max-broken",
        type=_count_or_none,
        default=0,
        metavar="N",
        help="how many broken records are left out before it is an error (0)",
    )
    parser.add_argument(
        "--part-size",
        type=positive_count,
        default="64M",
        metavar="SIZE",
        help="of the input; a part is done whole or again (64M)",
    )
    parser.add_argument(
        "--shard-size",
        type=positive_count,
        default="256M",
        metavar="SIZE",
        help="a shard has little more than this (256M)",
    )
    parser.add_argument("--replace", action="store_true", help="replace data that was prepared there")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    return parser


def _inspect(argv: list[str]) -> int:
    parser = VerbParser("rondo data inspect", "What prepared shards hold, as their index says.")
    parser.add_argument(
        "source", metavar="FOLDER", help="a folder or s3://bucket/path that `rondo data prepare` wrote"
    )
    parser.add_argument(
        "--check", action="store_true", help="read every shard, and compare it with its checksum"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    arguments = parser.parse_args(argv)

    from rondo.data.storage.shards import check_shards, read_index

    index = read_index(arguments.source)
    if arguments.check:
        check_shards(arguments.source, index)
    if arguments.json:
        print(json.dumps({"path": arguments.source, **_facts(index), "checked": arguments.check}))
        return 0
    _show(index)
    if arguments.check:
        print("checked     every shard is what the index says")
    return 0


def _facts(index: Index) -> dict[str, object]:
    return {
        "documents": index.documents,
        "tokens": index.tokens,
        "longest": index.longest,
        "shards": len(index.shards),
        "bytes": index.size,
        "tokenizer": index.tokenizer,
        "digest": index.digest,
        "sources": [source.model_dump() for source in index.sources],
        "broken": [broken.model_dump() for broken in index.broken],
    }


def _show(index: Index) -> None:
    print(f"documents   {index.documents:,}, the longest of {index.longest:,} tokens")
    print(f"tokens      {human_count(index.tokens)} ({index.tokens:,})")
    print(f"shards      {len(index.shards)}, {human_bytes(index.size)}")
    for source in index.sources:
        left_out = [f"{source.empty} empty"] * bool(source.empty) + [f"{source.broken} broken"] * bool(
            source.broken
        )
        note = f", left out: {' and '.join(left_out)}" if left_out else ""
        print(
            f"source      {source.name}: {source.documents:,} documents, {human_count(source.tokens)} tokens{note}"
        )
    for broken in index.broken[:10]:
        print(f"broken      {broken.where}: {broken.problem}")


def _preview(argv: list[str]) -> int:
    parser = VerbParser(
        "rondo data preview",
        "The format of each file, and its first records: with --model as the model reads them in training.",
    )
    parser.add_argument("source", metavar="FILE", help="a file of records, or a folder of them")
    parser.add_argument(
        "--model", metavar="MODEL", help="the model whose chat template and tokenizer are used"
    )
    parser.add_argument(
        "--records", type=positive_count, default=3, metavar="N", help="number of records shown (3)"
    )
    parser.add_argument(
        "--format",
        choices=("auto", *FORMAT_NAMES),
        default="auto",
        metavar="NAME",
        help=f"auto, {', '.join(FORMAT_NAMES)} (auto)",
    )
    _add_field(parser)
    arguments = parser.parse_args(argv)

    from rondo.cli.view.preview import show_data, show_preview, show_records
    from rondo.data.config import LoaderConfig
    from rondo.train.config import TrainConfig
    from rondo.train.recipes import data

    loader = LoaderConfig(fields=dict(arguments.field), format=arguments.format)
    config = TrainConfig(data=arguments.source, loader=loader)
    kind, opened = data.open_any(config)
    show_data(opened, sys.stdout)
    if arguments.model is None:
        show_records(opened, arguments.records, sys.stdout)
        return 0

    from rondo.text.tokenizer import Tokenizer
    from rondo.train.recipes.preview import preview

    tokenizer = Tokenizer.load(_tokenizer(arguments.model))
    show_preview(preview(kind, opened.training, tokenizer, config, arguments.records), sys.stdout)
    return 0


def _add_field(parser: VerbParser) -> None:
    parser.add_argument(
        "--field",
        type=_field,
        action="append",
        default=[],
        metavar="[NAME=]FIELD",
        help=f"field names in the data: FIELD is the text; NAME is one of {', '.join(FIELDS)}",
    )


def _field(text: str) -> tuple[str, str]:
    name, given, theirs = text.partition("=")
    if not given:
        return "text", text
    if name not in FIELDS or not theirs:
        raise argparse.ArgumentTypeError(f"{text!r} is not [NAME=]FIELD with NAME one of {', '.join(FIELDS)}")
    return name, theirs


def _count_or_none(text: str) -> int:
    return 0 if text == "0" else positive_count(text)


VERBS: dict[str, Verb] = {"prepare": _prepare, "inspect": _inspect, "preview": _preview}
