"""`rondo model export`: a model for transformers, or as a GGUF file for llama.cpp."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rondo.base.errors import InvalidRequest
from rondo.base.storage.paths import path_of
from rondo.base.units import human_bytes
from rondo.cli.options.arguments import VerbParser
from rondo.cli.view.progress import byte_progress

if TYPE_CHECKING:
    import argparse

    from rondo.jobs.job import Job

TYPES = ("f32", "f16", "bf16", "q8_0", "q4_0")


def run(argv: list[str]) -> int:
    arguments = _parser().parse_args(argv)
    if (arguments.destination is None) == (arguments.gguf is None):
        raise InvalidRequest(
            "Give one destination: a FOLDER, or --gguf FILE. See rondo model export --help.",
            param="destination",
        )
    if arguments.type is not None and arguments.gguf is None:
        raise InvalidRequest("--type is for GGUF files: add --gguf FILE, or leave it out.", param="type")
    if (found := _checkpoint(arguments.model)) is not None:
        return _export_checkpoint(*found, arguments)
    if arguments.merge:
        raise InvalidRequest("--merge is for checkpoints, such as JOB@100.", param="--merge")
    with byte_progress(f"exporting {arguments.model}") as report:
        if arguments.gguf is None:
            from rondo.models.store import export_model

            path = export_model(
                arguments.model, arguments.destination, replace=arguments.replace, report=report
            )
        else:
            from rondo.models.files.gguf.export import export_gguf
            from rondo.models.store import name_of, resolve

            source = resolve(arguments.model)
            path = export_gguf(
                source,
                path_of(arguments.gguf, "--gguf"),
                arguments.type and arguments.type.upper(),
                name=name_of(source),
                replace=arguments.replace,
                report=report,
            )
    size = f" ({human_bytes(path.stat().st_size)})" if path.is_file() else ""
    print(f"{arguments.model} is in {path}{size}")
    return 0


def _checkpoint(text: str) -> tuple[Job, int] | None:
    """Job and step, if the text names a checkpoint."""
    name, mark, step = text.rpartition("@")
    if not mark or not step.isdigit() or "/" in name:
        return None
    from rondo.jobs.job import Job

    return Job.find(name), int(step)


def _export_checkpoint(job: Job, step: int, arguments: argparse.Namespace) -> int:
    if arguments.destination is None:
        raise InvalidRequest(
            f"--gguf does not take a checkpoint: export {arguments.model} to a FOLDER first, and then that folder.",
            param="--gguf",
        )
    from rondo.train.recipes.stored import export_step

    target = path_of(arguments.destination, "destination")
    path = export_step(job, step, target, merge=arguments.merge, replace=arguments.replace)
    print(f"{arguments.model} is in {path}")
    return 0


def _parser() -> VerbParser:
    parser = VerbParser(
        "rondo model export", "Write a model as a folder for transformers or as a GGUF file for llama.cpp."
    )
    parser.add_argument(
        "model",
        metavar="MODEL",
        help="a name from `rondo model list`, a folder, a GGUF file, a job's hash, or JOB@STEP for a checkpoint",
    )
    parser.add_argument(
        "destination", metavar="FOLDER", nargs="?", help="a folder that is absent or empty, for transformers"
    )
    parser.add_argument("--gguf", metavar="FILE", help="the GGUF file to write, for llama.cpp and Ollama")
    parser.add_argument(
        "--type",
        choices=TYPES,
        help="type of the matrices in the GGUF file; by default that of the model's weights",
    )
    parser.add_argument(
        "--merge", action="store_true", help="JOB@STEP: merge the checkpoint of a LoRA into its base"
    )
    parser.add_argument("--replace", action="store_true", help="replace an existing folder or file")
    return parser
