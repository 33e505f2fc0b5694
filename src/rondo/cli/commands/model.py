"""`rondo model new|import|export|quantize|inspect|list|cp|rename|rm`: the models of this machine."""

import json

from rondo.base.storage.paths import path_of
from rondo.base.units import human_bytes, human_count
from rondo.cli.options.arguments import VerbParser
from rondo.cli.options.verbs import Verb, run_verb
from rondo.cli.subcommands import model_manage
from rondo.cli.view.progress import byte_progress

USAGE = """usage: rondo model VERB [options]

  new       make a small model with random weights
  import    take in a Hugging Face folder, checked as a whole
  export    write a model for transformers, or as a GGUF file for llama.cpp
  quantize  make its weights take a half or a quarter of the memory
  inspect   what a model is: family, size, layers, adapter targets
  list      the models of this machine: date, size, parent, job and score
  cp        copy a model, or the result of a job, to a name
  rename    give a model another name
  rm        remove models

  rondo model VERB --help   what a verb takes"""


def run(argv: list[str]) -> int:
    return run_verb("rondo model", VERBS, USAGE, argv)


def _import(argv: list[str]) -> int:
    parser = VerbParser("rondo model import", "Take in a Hugging Face folder, checked as a whole.")
    parser.add_argument(
        "source", metavar="FOLDER", help="config.json, safetensors and the tokenizer's files, or a GGUF file"
    )
    parser.add_argument(
        "name", metavar="NAME", nargs="?", help="what to call it; the folder's own name by default"
    )
    parser.add_argument("--replace", action="store_true", help="put it in the place of a model of that name")
    arguments = parser.parse_args(argv)
    name = arguments.name or path_of(arguments.source, "FOLDER").resolve().name.removesuffix(".gguf")
    from rondo.models.store import import_model, place

    place(name)
    with byte_progress(f"importing {name}") as report:
        path = import_model(arguments.source, name, replace=arguments.replace, report=report)
    print(f"{name} is in {path}")
    return 0


def _export(argv: list[str]) -> int:
    from rondo.cli.subcommands.model_export import run as export

    return export(argv)


def _inspect(argv: list[str]) -> int:
    parser = VerbParser(
        "rondo model inspect", "What a model is, read from its config and the headers of its weights."
    )
    parser.add_argument("model", metavar="MODEL", help="a model's name or folder, or a job's name or hash")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    arguments = parser.parse_args(argv)
    from rondo.models.store import facts, resolve

    found = facts(resolve(arguments.model))
    config = found.config
    if arguments.json:
        answer = {
            "path": str(found.path),
            "family": config.family,
            "parameters": found.parameters,
            "dtypes": list(found.dtypes),
            "quantization": None if config.quantization is None else config.quantization.method,
            "weight_bytes": found.weight_bytes,
            "disk_bytes": found.disk_bytes,
            "layers": len(config.layers),
            "hidden_size": config.hidden_size,
            "vocab_size": config.vocab_size,
            "context": config.max_positions,
            "adapter_targets": list(found.adapter_targets),
            "tokenizer": found.has_tokenizer,
        }
        print(json.dumps(answer))
        return 0
    rows = {
        "folder": str(found.path),
        "family": config.family,
        "parameters": f"{human_count(found.parameters)} ({found.parameters:,})",
        "dtype": ", ".join(found.dtypes),
        "quantization": "none" if config.quantization is None else config.quantization.method,
        "size on disk": f"{human_bytes(found.disk_bytes)} ({human_bytes(found.weight_bytes)} of weights)",
        "layers": f"{len(config.layers)} of width {config.hidden_size}",
        "vocabulary": f"{config.vocab_size:,}" + (", head tied to the embedding" if config.tied else ""),
        "context": f"{config.max_positions:,} tokens",
        "adapter targets": ", ".join(found.adapter_targets) or "none",
        "tokenizer": "yes" if found.has_tokenizer else "none",
    }
    print("\n".join(f"{label:<16} {value}" for label, value in rows.items()))
    return 0


def _new(argv: list[str]) -> int:
    from rondo.cli.subcommands.model_new import run as make

    return make(argv)


def _quantize(argv: list[str]) -> int:
    from rondo.cli.subcommands.model_quantize import run as quantize

    return quantize(argv)


VERBS: dict[str, Verb] = {
    "new": _new,
    "import": _import,
    "export": _export,
    "quantize": _quantize,
    "inspect": _inspect,
    "list": model_manage.list_verb,
    "cp": model_manage.cp_verb,
    "rename": model_manage.rename_verb,
    "rm": model_manage.rm_verb,
}
