"""Run by the trackers' Python, with our sources on its path: logs steps to a run, and prints what its file holds.

The file is a log in LevelDB's form, after a header of 7 bytes: records in blocks of 32 KB, each with a checksum, its
length and which part of a record it is.
"""

import json
import struct
import sys
from collections.abc import Iterator
from pathlib import Path

from wandb.proto import wandb_internal_pb2

from rondo.train.config import MetricsConfig
from rondo.train.metrics.wandb import Wandb

HEADER, BLOCK, WHOLE, LAST = 7, 1 << 15, 1, 4


def records(data: bytes) -> Iterator[bytes]:
    at, found = HEADER, b""
    while at + 7 <= len(data):
        if BLOCK - at % BLOCK < 7:
            at += BLOCK - at % BLOCK
            continue
        _, size, part = struct.unpack("<IHB", data[at : at + 7])
        found += data[at + 7 : at + 7 + size]
        at += 7 + size
        if part in (WHOLE, LAST):
            yield found
            found = b""


folder = Path(sys.argv[1])
for steps in ([1, 2, 3], [3, 4]):
    run = Wandb(MetricsConfig(wandb="project"), "abcdef", folder, {"lr": 0.001, "adapter": {"kind": "none"}})
    for step in steps:
        run.log(step, {"loss": 1.0 / step, "seconds/load": 0.25})
    run.close()
for file in sorted((folder / "wandb").glob("offline-run-*/*.wandb")):
    rows, names = [], set()
    for data in records(file.read_bytes()):
        record = wandb_internal_pb2.Record.FromString(data)
        if record.HasField("run"):
            names.add((record.run.project, record.run.run_id, record.run.display_name))
        if record.HasField("history"):
            items = record.history.item
            rows.append(
                {item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in items}
            )
    print(json.dumps({"runs": sorted(names), "rows": rows}))
