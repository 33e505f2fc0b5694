"""`rondo weights plan|simulate`: bytes of links and predicted times."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rondo.base.errors import ConfigError
from rondo.base.storage.paths import path_of
from rondo.base.units import human_bytes, human_seconds
from rondo.cli.options.arguments import VerbParser
from rondo.cli.view.table import aligned

if TYPE_CHECKING:
    import argparse

    from rondo.weights.plan.layouts import RankLayout, Shapes
    from rondo.weights.plan.simulate import Links, Prediction

RECEIVERS = "256,512,1024,2048,4096"
MOST_LINKS = 32


def plan(argv: list[str]) -> int:
    parser = VerbParser("rondo weights plan", "Bytes of every link from a learner to an engine.")
    parser.add_argument("model", metavar="MODEL", help="a model folder")
    _add_layouts(parser, "fsdp=2,tp=2", "tp=4")
    _add_links(parser)
    given = parser.parse_args(argv)
    from rondo.weights.plan.layouts import total_bytes
    from rondo.weights.plan.simulate import plan_copy, predict

    shapes = _shapes(path_of(given.model, "model"))
    learner, engine = _layouts(given)
    transfers = plan_copy(shapes, learner, engine)
    found = predict(transfers, total_bytes(shapes), learner, engine, _links(given), given.bucket_bytes)
    if given.json:
        print(json.dumps(asdict(replace(found, sent={})) | {"links": _links_of(found)}))
        return 0
    rows: list[tuple[str, ...]] = [("FROM", "TO", "BYTES")]
    rows += [
        (f"learner {owner}", f"engine {to}", human_bytes(size))
        for (owner, to), size in sorted(found.sent.items())
    ]
    print("\n".join(aligned(rows[: MOST_LINKS + 1])))
    if len(rows) > MOST_LINKS + 1:
        print(f"and {len(rows) - MOST_LINKS - 1} further links")
    received = Counter[int]()
    for (_, to), size in found.sent.items():
        received[to] += size
    for to, size in sorted(received.items())[:MOST_LINKS]:
        print(f"engine {to} receives {human_bytes(size)}, {size / found.nbytes:.1%} of the model")
    print("\n".join(_predicted(found)))
    return 0


def simulate(argv: list[str]) -> int:
    parser = VerbParser("rondo weights simulate", "Predicted times of a large model on many receivers.")
    parser.add_argument("--parameters", type=float, default=1e12, help="parameters of the model (1e12)")
    parser.add_argument("--bytes", type=int, default=1, metavar="N", help="bytes per parameter (1: FP8)")
    parser.add_argument("--receivers", default=RECEIVERS, help=f"numbers of engine ranks ({RECEIVERS})")
    _add_layouts(parser, "fsdp=16,pp=1,tp=16,ep=256", "tp=16,ep=16")
    _add_links(parser)
    given = parser.parse_args(argv)
    from rondo.weights.plan.layouts import mixture, total_bytes
    from rondo.weights.plan.simulate import plan_copy, predict

    shapes = mixture(given.parameters, given.bytes)
    learner, engine = _layouts(given)
    counts = _counts(given.receivers, engine.ranks)
    started = time.perf_counter()
    transfers = plan_copy(shapes, learner, engine)
    planned = time.perf_counter() - started
    nbytes, links = total_bytes(shapes), _links(given)
    found = {
        count: predict(
            transfers, nbytes, learner, replace(engine, dp=count // engine.ranks), links, given.bucket_bytes
        )
        for count in counts
    }
    if given.json:
        print(json.dumps({count: asdict(replace(each, sent={})) for count, each in found.items()}))
        return 0
    print(
        f"{human_bytes(nbytes)} in {len(shapes)} tensors, {learner.ranks} learner ranks\nplanned in "
        f"{human_seconds(planned)} ({len(transfers)} transfers a copy)"
    )
    rows: list[tuple[str, ...]] = [("RECEIVERS", "COPIES", "DIRECT", "CHAIN", "MOVED", "PREDICTED")]
    rows += [
        (
            str(count),
            str(count // engine.ranks),
            str(each.direct),
            str(each.chain),
            human_bytes(each.moved),
            f"{each.seconds:.2f} s",
        )
        for count, each in found.items()
    ]
    print("\n".join(aligned(rows)))
    return 0


def _add_layouts(parser: VerbParser, learner: str, engine: str) -> None:
    parser.add_argument(
        "--learner", default=learner, metavar="LAYOUT", help=f"layout of the learner ({learner})"
    )
    parser.add_argument("--engine", default=engine, metavar="LAYOUT", help=f"layout of one engine ({engine})")


def _add_links(parser: VerbParser) -> None:
    parser.add_argument("--network", type=float, default=50.0, help="GB/s of a rank's network interface (50)")
    parser.add_argument("--memory", type=float, default=1000.0, help="GB/s of a copy in memory (1000)")
    parser.add_argument("--bucket-bytes", type=int, default=64 << 20, help="bytes of a bucket (67108864)")
    parser.add_argument("--json", action="store_true", help="print the prediction as JSON")


def _links(given: argparse.Namespace) -> Links:
    from rondo.weights.plan.simulate import Links

    return Links(network=given.network * 1e9, memory=given.memory * 1e9, convert=given.memory * 1e9 / 2)


def _layouts(given: argparse.Namespace) -> tuple[RankLayout, RankLayout]:
    from rondo.weights.plan.layouts import RankLayout

    return RankLayout.parse(given.learner, "learner"), RankLayout.parse(given.engine, "engine")


def _counts(text: str, ranks: int) -> list[int]:
    counts = [int(each) for each in text.split(",") if each.isdigit()]
    if not counts or any(count % ranks for count in counts):
        raise ConfigError(
            f"--receivers {text} must be multiples of the engine's {ranks} ranks.", param="receivers"
        )
    return counts


def _shapes(folder: Path) -> Shapes:
    from rondo.models.files.headers import DTYPES, read_headers
    from rondo.weights.manifest import NAMES

    headers = read_headers(folder)
    return {
        name: (each.shape, DTYPES[NAMES[each.dtype]][1])
        for header in headers
        for name, each in header.tensors.items()
    }


def _predicted(found: Prediction) -> list[str]:
    stages = ", ".join(f"{name} {human_seconds(seconds)}" for name, seconds in found.stages.items())
    return [
        f"{human_bytes(found.moved)} moved for a model of {human_bytes(found.nbytes)}",
        f"predicted {human_seconds(found.seconds)}: {stages}",
    ]


def _links_of(found: Prediction) -> list[Mapping[str, Any]]:
    return [
        {"learner": owner, "engine": to, "bytes": size} for (owner, to), size in sorted(found.sent.items())
    ]
