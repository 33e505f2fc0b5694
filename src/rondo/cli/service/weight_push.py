"""`rondo weights push`: a model folder to engines of this host, to stores, or to the replicas of a cluster."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

from rondo.base.errors import ConfigError, Unavailable
from rondo.base.storage.paths import path_of
from rondo.base.units import human_bytes, human_seconds
from rondo.cli.options.arguments import VerbParser
from rondo.cli.view.table import aligned

if TYPE_CHECKING:
    from rondo.weights.directory import WeightDirectory
    from rondo.weights.plan.layouts import RankLayout, Shapes
    from rondo.weights.publisher import PushReport


def push(argv: list[str]) -> int:
    given = _parser().parse_args(argv)
    from rondo.client.http import Client
    from rondo.models.files.headers import read_config
    from rondo.models.files.safetensors import open_checkpoint
    from rondo.weights.config import WeightsConfig
    from rondo.weights.directory import newest_version, open_directory
    from rondo.weights.plan.layouts import RankLayout
    from rondo.weights.publisher import Publisher
    from rondo.weights.shards import Shard
    from rondo.weights.transports.objects import put, versions_in
    from rondo.weights.transports.source import WeightSource

    folder = path_of(given.model, "model")
    name, cluster = given.name or folder.name, given.directory not in ("", "local:")
    engines, stores = _targets(given.to)
    if not (engines or stores or cluster):
        raise ConfigError("Set --to, or --directory etcd://HOST:PORT.", param="to")
    layout = RankLayout.parse(given.engine, "engine")
    directory = open_directory(given.directory)
    clients = {url: Client(url, admin_key=given.admin_key) for url in engines}
    publisher: Publisher | None = None
    try:
        before, version = newest_version(directory, name), given.version
        if version is None:
            present = [int(client.weight_info()["weight_version"]) for client in clients.values()]
            present += [each for url in stores for each in versions_in(url)]
            version = 1 + max([0, before, *present])
        settings = WeightsConfig(requests=given.requests)
        publisher = Publisher(name, read_config(folder), settings, directory)
        stored = open_checkpoint(folder)
        publisher.register(lambda: (Shard(name, each.mapped()) for name, each in stored.items()))
        report = publisher.push(version, clients)
        for url in stores:
            put(WeightSource.parse(publisher.source).folder, url)
        print("\n".join(_report(report, publisher.shapes, engines, layout, settings.threads)))
        for url in stores:
            print(f"version {version} is in {url}")
        for url, reason in report.failed.items():
            print(f"{url} continues with its version: {reason}")
        if cluster:
            _hand_over(
                *(directory, name, version, before, publisher.owner, given.holder_seconds),
                elsewhere=bool(stores) or len(report.failed) < len(engines),
            )
    finally:
        if publisher is not None:
            publisher.close()
        directory.close()
        for client in clients.values():
            client.close()
    return 1 if report.failed else 0


def _parser() -> VerbParser:
    parser = VerbParser(
        "rondo weights push",
        "Push a model folder to running engines of this host, to a store, or to the replicas of a directory.",
    )
    parser.add_argument("model", metavar="MODEL", help="a model folder")
    parser.add_argument(
        "--to", default="", metavar="URL[,URL]", help="engines, or stores: s3://..., store:/a/folder"
    )
    parser.add_argument(
        "--version",
        type=int,
        help="version of the weights (one above those of the receivers and the directory)",
    )
    parser.add_argument(
        "--requests",
        choices=("retain", "recompute", "abort"),
        default="retain",
        help="running requests: retain their KV cache, recompute it, or abort them (retain)",
    )
    parser.add_argument("--directory", default="local:", help="local: or etcd://HOST:PORT (local:)")
    parser.add_argument("--name", help="name of the model in the directory (its folder's)")
    parser.add_argument(
        "--holder-seconds",
        type=float,
        default=60.0,
        help="with etcd://, seconds for replicas (rondo weights serve) to take the version (60)",
    )
    parser.add_argument(
        "--engine",
        default="",
        metavar="LAYOUT",
        help="layout of each engine, such as tp=2, for the list of links",
    )
    parser.add_argument(
        "--admin-key", default=os.environ.get("RONDO_ADMIN_KEY"), help="admin key of the engines"
    )
    return parser


def _targets(text: str) -> tuple[list[str], list[str]]:
    """Engines and stores of a list of URLs."""
    urls = [url for url in text.split(",") if url]
    engines = [url for url in urls if url.startswith(("http://", "https://"))]
    stores = [url for url in urls if url.startswith(("s3://", "store:"))]
    for url in urls:
        if url not in engines and url not in stores:
            raise ConfigError(
                f"--to {url} is neither an engine (http://HOST:PORT) nor a store (s3://BUCKET/PREFIX, store:/FOLDER).",
                param="to",
            )
    return engines, stores


def _report(
    report: PushReport, shapes: Shapes, engines: Sequence[str], layout: RankLayout, threads: int
) -> list[str]:
    """Bytes of each link by the plan, and the predicted next to the measured time."""
    from rondo.weights.checksum import copy_rate
    from rondo.weights.config import WeightsConfig
    from rondo.weights.plan.layouts import RankLayout, total_bytes
    from rondo.weights.plan.simulate import Links, simulate

    rate = copy_rate(threads)
    links, bucket_bytes = Links(network=rate, memory=rate, convert=rate), WeightsConfig().bucket_bytes
    found = simulate(shapes, RankLayout(), layout, links, bucket_bytes)
    rows: list[tuple[str, ...]] = [
        ("FROM", "TO", "BYTES"),
        ("learner", "segment", human_bytes(report.written)),
    ]
    rows += [
        ("segment", f"{url} rank {rank}", human_bytes(size))
        for url in engines
        for (_, rank), size in sorted(found.sent.items())
    ]
    predicted = f"{human_seconds(found.seconds)} with copies at {rate / 1e9:.1f} GB/s"
    return [
        f"version {report.version}: {human_bytes(report.nbytes)} in {report.buckets} buckets, written in "
        f"{report.copy_seconds:.3f} s ({report.nbytes / max(report.copy_seconds, 1e-9) / 1e9:.2f} GB/s), switched "
        f"after {report.seconds:.3f} s",
        *aligned(rows),
        f"planned {human_bytes(total_bytes(shapes))}, written {human_bytes(report.written)}; predicted "
        f"{predicted}, measured {human_seconds(report.seconds)}",
    ]


def _hand_over(
    directory: WeightDirectory,
    name: str,
    version: int,
    before: int,
    owner: str,
    seconds: float,
    elsewhere: bool,
) -> None:
    """Waits for the replicas: the segment ends with this process. `elsewhere`: engines or stores have the version."""
    from rondo.weights.directory.handover import hand_over

    found = hand_over(directory, name, version, before, owner, seconds, required=not elsewhere)
    if found.holders:
        print(f"version {version} is held by {', '.join(sorted(found.holders))}")
    elif elsewhere:
        print(
            f"no replica of {name} holds version {version}: start `rondo weights serve {name} --directory URL`"
        )
    else:
        raise Unavailable(
            f"no replica took version {version} of {name} in {seconds:g} s, and no process holds it any longer: start "
            f"`rondo weights serve {name} --directory URL` on this host, and push again.",
            code="no_holder",
        )
    for each in sorted(found.late):
        print(f"{each} still holds version {before}")
