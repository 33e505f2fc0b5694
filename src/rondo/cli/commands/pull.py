"""`rondo pull ORG/NAME[@revision][:part]`: a model, adapter or data set of the Hugging Face Hub, into the cache."""

from __future__ import annotations

from os.path import commonpath

from rondo.base.errors import ConfigError
from rondo.base.units import human_bytes
from rondo.cli.options.arguments import VerbParser
from rondo.cli.view.fetch import fetch_progress
from rondo.hub.datasets import SPLITS
from rondo.hub.names import HubName, Kind, hub_name


def run(argv: list[str]) -> int:
    parser = VerbParser(
        "rondo pull",
        "Download models or data sets of the Hugging Face Hub, or update them. Other verbs download a missing model "
        "themselves.",
    )
    parser.add_argument(
        "names",
        metavar="ORG/NAME[@REVISION][:PART]",
        nargs="+",
        help="the revision is a branch, a tag or a commit (main); the part is the quantization of a GGUF file "
        "(Q4_K_M), or SPLIT or CONFIGURATION/SPLIT of a data set (train)",
    )
    parser.add_argument("--dataset", action="store_true", help="the names are data sets, not models")
    parser.epilog = (
        "Downloads are kept in the Hugging Face cache (HF_HOME, ~/.cache/huggingface), which other programs share. "
        "HF_TOKEN or `hf auth login` grants access to gated and private repositories; HF_ENDPOINT selects a mirror; "
        "HF_HUB_OFFLINE=1 forbids requests."
    )
    arguments = parser.parse_args(argv)
    kind: Kind = "dataset" if arguments.dataset else "model"
    for name in [_parse(text, kind) for text in arguments.names]:
        (_pull_dataset if arguments.dataset else _pull_model)(name)
    return 0


def _parse(text: str, kind: Kind) -> HubName:
    name = hub_name(text, kind)
    if name is None:
        form = "ORG/NAME, ORG/NAME@REVISION or ORG/NAME:" + ("SPLIT" if kind == "dataset" else "QUANTIZATION")
        raise ConfigError(f"{text!r} is not a name of the Hugging Face Hub: write {form}.", param="names")
    if kind == "model" and name.part in SPLITS:
        raise ConfigError(f"{text!r} is a data set's name. A data set needs --dataset.", param="names")
    return name


def _pull_model(name: HubName) -> None:
    from rondo.hub.models import has_model, serving_command
    from rondo.models.store import name_of, pull, revision_of

    with fetch_progress(str(name)) as report:
        path = pull(name, report)
    files = [path] if path.is_file() else [file for file in path.rglob("*") if file.is_file()]
    size = human_bytes(sum(file.stat().st_size for file in files))
    print(f"{name_of(path)} ({size}, commit {revision_of(path)[:12]}) is in\n{path}")
    print(f"Serve it: {f'rondo serve {name}' if has_model(path) else serving_command(name, path)}")


def _pull_dataset(name: HubName) -> None:
    from rondo.data.input.formats import SUFFIXES
    from rondo.hub.datasets import pull_dataset

    with fetch_progress(str(name)) as report:
        files = pull_dataset(name, SUFFIXES, report)
    size = human_bytes(sum(file.stat().st_size for file in files))
    source = f"{name}:{name.part}" if name.part else str(name)
    print(
        f"{source} ({len(files)} files, {size}) is in\n{commonpath(files)}\n"
        f"Train on it: rondo train sft --data {source}"
    )
