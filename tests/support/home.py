"""A `RONDO_HOME` of a test's own."""

from pathlib import Path

from rondo.base.storage.home import cache_dir


def own_home(folder: Path) -> Path:
    """Nothing is in it but the compiled kernels of the home in force, since compiling them takes half a minute."""
    kernels = cache_dir() / "native"
    kernels.mkdir(parents=True, exist_ok=True)
    (folder / "cache").mkdir(parents=True, exist_ok=True)
    link = folder / "cache" / "native"
    if not link.is_symlink():
        link.symlink_to(kernels)
    return folder
