"""`rondo registry list|show|import|promote|rollback|alias|load|unload|rm`: registered models of a gateway."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from rondo.base.errors import ConfigError
from rondo.cli.options.arguments import VerbParser
from rondo.cli.options.verbs import run_verb
from rondo.cli.platform.remote import add_address, gateway_client
from rondo.cli.view.table import aligned

USAGE = """usage: rondo registry VERB [options]

  list      models, their kinds, stages and aliases
  show      one model with its lineage
  import    register a folder, a URL, a job, or a checkpoint of ScalarLM
  promote   make a version the one that its name stands for
  rollback  return a name or an alias to the model before
  alias     point another name at a model, or list aliases
  load      load a model now
  unload    unload a model; the next request loads it again
  rm        remove a model from the registry; its files stay

A model is named by an alias, a name, `latest`, a hash, or HASH@STEP for a checkpoint;
a request for each of them is answered without a restart.

  rondo registry VERB --help   what a verb takes"""
SHORT = 12
MODEL = "an alias, a name, latest, a hash or HASH@STEP"


def run(argv: list[str]) -> int:
    return run_verb("rondo registry", VERBS, USAGE, argv)


def _list(argv: list[str]) -> int:
    parser = VerbParser("rondo registry list", "Registered models, the newest first.")
    parser.add_argument("--name", metavar="NAME", help="versions of this name only")
    parser.add_argument("--kind", metavar="KIND", help="lora, tokenformer, full or reward")
    parser.add_argument("--stage", metavar="STAGE", help="candidate, production or archived")
    parser.add_argument("--limit", type=int, default=50, metavar="N", help="models to list (50)")
    parser.add_argument("--json", action="store_true", help="print JSON")
    add_address(parser)
    given = parser.parse_args(argv)
    with gateway_client(given.url, given.key) as client:
        found = client.registry(name=given.name, kind=given.kind, stage=given.stage, limit=given.limit)
    if given.json:
        print(json.dumps(found["data"]))
        return 0
    rows: list[tuple[str, ...]] = [("ID", "NAME", "KIND", "BASE", "STATE", "ALIASES")]
    print("\n".join(aligned([*rows, *map(_row, found["data"])])))
    if found["has_more"]:
        print(f"... and more: --limit {2 * given.limit}")
    return 0


def _show(argv: list[str]) -> int:
    given = _parsed("show", "One model with its lineage, as JSON.", argv)
    with gateway_client(given.url, given.key) as client:
        print(json.dumps(client.registered(given.model), indent=2, ensure_ascii=False))
    return 0


def _import(argv: list[str]) -> int:
    parser = VerbParser(
        "rondo registry import",
        "Register a folder, a URL such as s3://BUCKET/FOLDER, a job, or checkpoint_N.pt.",
    )
    parser.add_argument("source", metavar="SOURCE", help="a folder or file of this machine, a URL, or a job")
    parser.add_argument(
        "--name", metavar="NAME", help="name of the model (by default that of the job or folder)"
    )
    parser.add_argument("--step", type=int, metavar="N", help="checkpoint of a job")
    parser.add_argument("--base", metavar="MODEL", help="base of an adapter, if its files do not name it")
    parser.add_argument(
        "--replace", action="store_true", help="checkpoint_N.pt: replace a folder of that name"
    )
    parser.add_argument(
        "--alpha", type=float, metavar="X", help="checkpoint_N.pt of a LoRA without lora_alpha"
    )
    add_address(parser)
    given = parser.parse_args(argv)
    fields = {"name": given.name, "base": given.base, **_source(given)}
    with gateway_client(given.url, given.key) as client:
        found = client.register(**fields)
    print(f"{found['name']} is registered as {found['id']}")
    return 0


def _source(given: Any) -> dict[str, Any]:
    """`job` and `step`, or `source` and `name`."""
    if "://" in given.source:
        return {"source": given.source, "name": given.name or given.source.rstrip("/").rpartition("/")[2]}
    path = Path(given.source).expanduser()
    if path.suffix == ".pt":
        if given.base is None:
            raise ConfigError(
                f"{path.name} does not contain its base model: give --base MODEL.", param="--base"
            )
        from rondo.models.adapters.scalarlm import import_checkpoint

        name = given.name or path.absolute().parent.name
        imported = import_checkpoint(path, name, given.base, alpha=given.alpha, replace=given.replace)
        return {"source": str(imported), "name": name}
    if path.exists() and "/" in given.source:
        return {"source": str(path.absolute()), "name": given.name or path.absolute().name}
    return {"job": given.source, "step": given.step}


def _promote(argv: list[str]) -> int:
    given = _parsed("promote", "Make a version the one that its name stands for.", argv)
    with gateway_client(given.url, given.key) as client:
        found = client.promote(given.model)
    print(f"{found['name']} stands for {found['id']}")
    return 0


def _rollback(argv: list[str]) -> int:
    given = _parsed("rollback", "Return a name or an alias to the model that it stood for before.", argv)
    with gateway_client(given.url, given.key) as client:
        found = client.rollback(given.model)
    print(f"{given.model} stands for {found['id']}")
    return 0


def _alias(argv: list[str]) -> int:
    parser = VerbParser("rondo registry alias", "Point another name at a model; without ALIAS, list aliases.")
    parser.add_argument("alias", metavar="ALIAS", nargs="?", help="the other name")
    parser.add_argument("model", metavar="MODEL", nargs="?", help=MODEL)
    parser.add_argument("--remove", action="store_true", help="remove the alias")
    add_address(parser)
    given = parser.parse_args(argv)
    with gateway_client(given.url, given.key) as client:
        if given.alias is None:
            rows = [
                (each["alias"], each["model"], *each["previous"][:1]) for each in client.aliases()["data"]
            ]
            print("\n".join(aligned([("ALIAS", "MODEL", "BEFORE"), *((*row, "")[:3] for row in rows)])))
        elif given.remove:
            client.remove_alias(given.alias)
            print(f"{given.alias} is removed")
        elif given.model is None:
            raise ConfigError("Give the model after the alias, or --remove.", param="model")
        else:
            print(f"{given.alias} stands for {client.set_alias(given.alias, given.model)['id']}")
    return 0


def _load(argv: list[str]) -> int:
    given = _parsed("load", "Load a model and wait until it answers.", argv)
    with gateway_client(given.url, given.key) as client:
        print(f"{client.load_model(given.model)['id']} is loaded")
    return 0


def _unload(argv: list[str]) -> int:
    given = _parsed("unload", "Unload a model; the next request loads it again.", argv)
    with gateway_client(given.url, given.key) as client:
        print(f"{client.unload_model(given.model)['id']} is unloaded")
    return 0


def _rm(argv: list[str]) -> int:
    given = _parsed("rm", "Remove a model from the registry; its files stay.", argv)
    with gateway_client(given.url, given.key) as client:
        print(f"{client.unregister(given.model)['id']} is removed from the registry")
    return 0


def _parsed(verb: str, about: str, argv: list[str]) -> Any:
    parser = VerbParser(f"rondo registry {verb}", about)
    parser.add_argument("model", metavar="MODEL", help=MODEL)
    add_address(parser)
    return parser.parse_args(argv)


def _row(each: dict[str, Any]) -> tuple[str, ...]:
    hash, mark, step = each["id"].partition("@")
    return (
        hash[:SHORT] + mark + step,
        each["name"],
        each["kind"],
        (each["base"] or "-").rpartition("/")[2],
        each["state"] if each["stage"] == "candidate" else f"{each['stage']}, {each['state']}",
        ", ".join(name for name in each["aliases"] if name != each["name"]) or "-",
    )


VERBS = {
    "list": _list,
    "show": _show,
    "import": _import,
    "promote": _promote,
    "rollback": _rollback,
    "alias": _alias,
    "load": _load,
    "unload": _unload,
    "rm": _rm,
}
