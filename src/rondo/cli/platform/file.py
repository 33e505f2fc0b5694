"""`rondo file upload|list|download|rm`: files of a gateway."""

from __future__ import annotations

import json
import time

from rondo.base.units import human_bytes
from rondo.cli.options.arguments import VerbParser
from rondo.cli.options.verbs import run_verb
from rondo.cli.platform.remote import add_address, gateway_client
from rondo.cli.view.table import aligned

USAGE = """usage: rondo file VERB [options]

  upload    upload local files: rondo file upload facts.jsonl
  list      list files, the newest first
  download  write a file to this machine: rondo file download ID --out FILE
  rm        delete files

Files are inputs and results of batches, training jobs and evals.

  rondo file VERB --help   what a verb takes"""


def run(argv: list[str]) -> int:
    return run_verb("rondo file", VERBS, USAGE, argv)


def _upload(argv: list[str]) -> int:
    parser = VerbParser("rondo file upload", "Upload local files and print their ids.")
    parser.add_argument("files", nargs="+", metavar="FILE", help="local file")
    parser.add_argument(
        "--purpose",
        default="fine-tune",
        help="fine-tune (default), batch, evals, user_data, assistants or vision",
    )
    add_address(parser)
    given = parser.parse_args(argv)
    with gateway_client(given.url, given.key) as client:
        for name in given.files:
            print(f"{client.upload(name, given.purpose)['id']}  {name}")
    return 0


def _list(argv: list[str]) -> int:
    parser = VerbParser("rondo file list", "List files, the newest first.")
    parser.add_argument("--purpose", help="files of this purpose alone")
    parser.add_argument("--limit", type=int, default=50, metavar="N", help="number of files (50)")
    parser.add_argument("--json", action="store_true", help="print one JSON array")
    add_address(parser)
    given = parser.parse_args(argv)
    with gateway_client(given.url, given.key) as client:
        files = client.file_page(limit=given.limit, purpose=given.purpose)["data"]
    if given.json:
        print(json.dumps(files))
        return 0
    rows = [("FILE", "PURPOSE", "SIZE", "CREATED", "NAME")]
    rows += [
        (
            each["id"],
            each["purpose"],
            human_bytes(each["bytes"]),
            time.strftime("%Y-%m-%d %H:%M", time.localtime(each["created_at"])),
            each["filename"],
        )
        for each in files
    ]
    print(
        "\n".join(aligned(rows)) if files else "There are no files yet: `rondo file upload FILE` uploads one."
    )
    return 0


def _download(argv: list[str]) -> int:
    parser = VerbParser("rondo file download", "Write a file of the gateway to this machine.")
    parser.add_argument("id", metavar="ID", help="id of a file")
    parser.add_argument("--out", metavar="FILE", help="local file (the file's own name, in this folder)")
    add_address(parser)
    given = parser.parse_args(argv)
    with gateway_client(given.url, given.key) as client:
        target = given.out or client.file(given.id)["filename"]
        size = client.download(given.id, target)
    print(f"{target}  {human_bytes(size)}")
    return 0


def _rm(argv: list[str]) -> int:
    parser = VerbParser("rondo file rm", "Delete files of the gateway. Jobs that use them continue.")
    parser.add_argument("ids", nargs="+", metavar="ID", help="id of a file")
    add_address(parser)
    given = parser.parse_args(argv)
    with gateway_client(given.url, given.key) as client:
        for id in given.ids:
            client.delete_file(id)
            print(f"{id} is deleted")
    return 0


VERBS = {"upload": _upload, "list": _list, "download": _download, "rm": _rm}
