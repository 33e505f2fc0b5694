"""Plug-in folder: an installed-looking package that registers our plug-ins with a vLLM whose
environment lacks Rondo."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

from rondo import __version__

PACKAGE = "rondo_vllm"
COPIES = {
    "rondo_vllm_plugin": "rondo.weights.vllm_plugin",
    "rondo_vllm_parent": "rondo.engine.vllm.child.parent",
    "rondo_vllm_waiting": "rondo.engine.vllm.child.waiting",
}
ENTRY_POINTS = {
    "rondo_folder": "rondo_vllm_plugin:register",
    "rondo_parent": "rondo_vllm_parent:watch",
    "rondo_waiting": "rondo_vllm_waiting:rest",
}


def write_plugins(folder: Path) -> None:
    """Fills `folder` with copies of the plug-ins and the metadata that an installer would have written."""
    for name, module in COPIES.items():
        (folder / f"{name}.py").write_text(_source(module))
    about = folder / f"{PACKAGE}-{__version__}.dist-info"
    about.mkdir()
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {PACKAGE}\nVersion: {__version__}\n")
    lines = [f"{name} = {place}" for name, place in ENTRY_POINTS.items()]
    (about / "entry_points.txt").write_text("\n".join(["[vllm.general_plugins]", *lines, ""]))


def _source(module: str) -> str:
    """Source of a module. It is read, not imported: its imports may be available only in vLLM's environment."""
    room, _, name = module.rpartition(".")
    found = find_spec(room)
    assert found is not None
    assert found.origin is not None
    return Path(found.origin).with_name(f"{name}.py").read_text()
