"""A folder that makes our plug-in known to a vLLM without Rondo in its environment: a package as if installed."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

from rondo import __version__

MODULE = "rondo_vllm_plugin"


def write_plugins(folder: Path) -> Path:
    """Fills `folder` with a copy of the plug-in and what an installer would have written about it."""
    spec = find_spec("rondo.weights")
    assert spec is not None
    assert spec.origin is not None
    source = Path(spec.origin).with_name("vllm_plugin.py")
    (folder / f"{MODULE}.py").write_text(source.read_text())
    about = folder / f"{MODULE}-{__version__}.dist-info"
    about.mkdir()
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {MODULE}\nVersion: {__version__}\n")
    (about / "entry_points.txt").write_text(f"[vllm.general_plugins]\nrondo_folder = {MODULE}:register\n")
    return folder
