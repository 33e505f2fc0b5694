"""Builds the web page: as a build hook for wheels, and as a program for `make page`."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "page"
BUILT = ROOT / "src" / "rondo" / "gateway" / "static" / "index.html"


def build() -> None:
    npm = shutil.which("npm")
    if npm is None:
        sys.exit(
            "error: the web page is built with npm, which is not installed: install Node.js 20 or later."
        )
    if not _is_installed():
        subprocess.run([npm, "ci", "--no-progress"], cwd=PAGE, check=True)
    subprocess.run([npm, "run", "build"], cwd=PAGE, check=True)


def _is_installed() -> bool:
    """Whether npm has installed the packages of the lock file since its last change."""
    installed, wanted = PAGE / "node_modules" / ".package-lock.json", PAGE / "package-lock.json"
    return installed.is_file() and installed.stat().st_mtime >= wanted.stat().st_mtime


try:
    from hatchling.builders.hooks.plugin.interface import BuildHookInterface
except ImportError:  # run as a program
    pass
else:

    class PageBuildHook(BuildHookInterface):  # type: ignore[type-arg]
        def initialize(self, version: str, build_data: dict[str, Any]) -> None:
            """Without npm the wheel has no page, and its gateway says how to build one."""
            if version == "standard" and PAGE.is_dir() and not BUILT.is_file() and shutil.which("npm"):
                build()


if __name__ == "__main__":
    build()
