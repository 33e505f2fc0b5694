"""`rondo weights plan|push|status|simulate|serve`: transfer of weights from learners to engines."""

from __future__ import annotations

import os

from rondo.base.errors import ConfigError, RondoError
from rondo.base.units import human_bytes
from rondo.cli.options.arguments import VerbParser
from rondo.cli.options.verbs import run_verb
from rondo.cli.service import weight_plans, weight_push
from rondo.cli.view.table import aligned

USAGE = """usage: rondo weights VERB [options]

  plan      bytes of every link from a learner to an engine, and the predicted time
  push      push a model folder to running engines, to a store or to replicas
  status    versions and holders in a directory, and the versions of engines
  simulate  predicted times of a large model on many receivers
  serve     keep a copy of the current version for this host's engines

  rondo weights VERB --help   what a verb takes"""

UNREACHABLE = "-"
"""In place of the version of an engine that does not answer."""


def run(argv: list[str]) -> int:
    return run_verb("rondo weights", VERBS, USAGE, argv)


def _status(argv: list[str]) -> int:
    parser = VerbParser(
        "rondo weights status", "Versions and holders in a directory, and the versions of engines."
    )
    parser.add_argument("model", nargs="?", metavar="MODEL", help="name of the model in the directory")
    parser.add_argument("--directory", help="etcd://HOST:PORT")
    parser.add_argument("--engines", default="", metavar="URL[,URL]", help="engines to ask for their version")
    parser.add_argument(
        "--admin-key", default=os.environ.get("RONDO_ADMIN_KEY"), help="admin key of the engines"
    )
    given = parser.parse_args(argv)
    if not given.directory and not given.engines:
        raise ConfigError("Set --directory, --engines or both.", param="directory")
    if given.directory and not given.model:
        raise ConfigError("Name the model whose holders the directory lists.", param="model")
    rows: list[tuple[str, ...]] = []
    if given.directory:
        from rondo.weights.directory import open_directory

        directory = open_directory(given.directory)
        try:
            holders = directory.lookup(given.model)
        finally:
            directory.close()
        rows = [("VERSION", "HOLDER", "TENSORS", "BYTES", "CHECKSUM", "SOURCE")]
        rows += [
            (str(h.version), h.owner, str(h.tensors), human_bytes(h.nbytes), h.checksum[:12], h.source or "-")
            for h in holders
        ]
        print("\n".join(aligned(rows)))
    found = [_engine(url, given.admin_key) for url in given.engines.split(",") if url]
    if found:
        print("\n".join(aligned([("ENGINE", "VERSION", "STATE"), *found])))
    return 1 if any(version == UNREACHABLE for _, version, _ in found) else 0


def _serve(argv: list[str]) -> int:
    parser = VerbParser("rondo weights serve", "Keep a copy of the current version for this host's engines.")
    parser.add_argument("model", metavar="MODEL", help="name of the model in the directory")
    parser.add_argument("--directory", required=True, help="etcd://HOST:PORT")
    parser.add_argument("--engines", default="", metavar="URL[,URL]", help="engines of this host to switch")
    parser.add_argument(
        "--admin-key", default=os.environ.get("RONDO_ADMIN_KEY"), help="admin key of the engines"
    )
    parser.add_argument(
        "--requests",
        choices=("retain", "recompute", "abort"),
        default="retain",
        help="running requests: retain their KV cache, recompute it, or abort them (retain)",
    )
    parser.add_argument(
        "--deltas",
        action="store_true",
        help="send only changed elements to hosts that have the version before",
    )
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (127.0.0.1)")
    parser.add_argument("--port", type=int, default=8009, help="port to listen on (8009)")
    parser.add_argument(
        "--key", default=os.environ.get("RONDO_WEIGHTS_KEY"), help="key of other hosts (RONDO_WEIGHTS_KEY)"
    )
    parser.add_argument(
        "--lease-seconds",
        type=float,
        default=30.0,
        help="seconds until the directory drops this copy when the process ends without notice (30)",
    )
    parser.add_argument(
        "--advertise",
        default="",
        metavar="URL",
        help="URL under which other hosts reach this one (the listener's)",
    )
    given = parser.parse_args(argv)
    if not given.key:
        raise ConfigError(
            "Set --key or RONDO_WEIGHTS_KEY: other hosts read the weights with it.", param="key"
        )
    os.environ["RONDO_WEIGHTS_KEY"] = given.key
    from rondo.weights.directory import new_owner, open_directory
    from rondo.weights.service import HostReplica, serve

    directory = open_directory(given.directory, given.lease_seconds)
    engines = [url for url in given.engines.split(",") if url]
    replica = HostReplica(
        given.model,
        directory,
        new_owner(),
        engines=engines,
        admin_key=given.admin_key,
        requests=given.requests,
    )
    replica.lease_seconds = given.lease_seconds
    replica.url, replica.deltas = given.advertise.rstrip("/"), given.deltas
    try:
        serve(replica, given.key, given.host, given.port)
    finally:
        directory.close()
    return 0


def _engine(url: str, admin_key: str | None) -> tuple[str, str, str]:
    from rondo.client.http import Client

    try:
        with Client(url, admin_key=admin_key) as client:
            info = client.weight_info()
    except RondoError as error:
        return url, UNREACHABLE, error.message
    state = (
        "updating" if info.get("updating") else "serving" if info.get("whole", True) else "without weights"
    )
    return url, str(info["weight_version"]), state


VERBS = {
    "plan": weight_plans.plan,
    "push": weight_push.push,
    "status": _status,
    "simulate": weight_plans.simulate,
    "serve": _serve,
}
