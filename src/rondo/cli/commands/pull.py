"""`rondo pull ORG/NAME[@revision]`: a model or data set of the Hugging Face Hub, into the Hugging Face cache."""

from __future__ import annotations

from os.path import commonpath

from rondo.base.errors import ConfigError
from rondo.base.units import human_bytes
from rondo.cli.options.arguments import VerbParser
from rondo.cli.view.fetch import fetch_progress
from rondo.hub.names import HubName, Kind, hub_name


def run(argv: list[str]) -> int:
    parser = VerbParser(
        "rondo pull",
        "Download models or data sets of the Hugging Face Hub, or update them. Other verbs download a missing model "
        "themselves.",
    )
    parser.add_argument(
        "names",
        metavar="ORG/NAME[@REVISION]",
        nargs="+",
        help="the revision is a branch, a tag or a commit (main); of a data set, :SPLIT or :CONFIGURATION/SPLIT may "
        "follow (train)",
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
        form = "ORG/NAME, ORG/NAME@REVISION" + (" or ORG/NAME:SPLIT" if kind == "dataset" else "")
        hint = " A data set needs --dataset." if kind == "model" and hub_name(text, "dataset") else ""
        raise ConfigError(
            f"{text!r} is not a name of the Hugging Face Hub: write {form}.{hint}", param="names"
        )
    return name


def _pull_model(name: HubName) -> None:
    from rondo.models.store import pull

    with fetch_progress(str(name)) as report:
        folder = pull(name, report)
    size = human_bytes(sum(file.stat().st_size for file in folder.rglob("*") if file.is_file()))
    print(f"{name} ({size}, commit {folder.name[:12]}) is in\n{folder}\nServe it: rondo serve {name}")


def _pull_dataset(name: HubName) -> None:
    from rondo.data.input.formats import SUFFIXES
    from rondo.hub.datasets import pull_dataset

    with fetch_progress(str(name)) as report:
        files = pull_dataset(name, SUFFIXES, report)
    size = human_bytes(sum(file.stat().st_size for file in files))
    source = f"{name}:{name.split}" if name.split else str(name)
    print(
        f"{source} ({len(files)} files, {size}) is in\n{commonpath(files)}\n"
        f"Train on it: rondo train sft --data {source}"
    )
