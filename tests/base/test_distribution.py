"""The distribution is `rondo-lab`; the import and the command are `rondo`."""

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def texts() -> list[Path]:
    return [
        *ROOT.glob("*.md"),
        *ROOT.glob("docs/**/*.md"),
        *ROOT.glob("examples/**/*.md"),
        *ROOT.glob("src/**/*.py"),
    ]


def test_the_names():
    assert PROJECT["name"] == "rondo-lab"
    assert PROJECT["scripts"] == {"rondo": "rondo.cli.main:program"}


def test_extras_are_named_with_the_distribution():
    wrong = re.compile(r"\brondo\[|pip install (?:--?\S+ )*'?rondo(?!-lab)\b(?!\.)")
    found = {path.name: hit.group() for path in texts() if (hit := wrong.search(path.read_text()))}
    assert not found


def test_every_extra_that_a_text_names_exists():
    named = {
        extra.strip()
        for path in texts()
        for extras in re.findall(r"rondo-lab\[([a-z, ]+)\]", path.read_text())
        for extra in extras.split(",")
    }
    assert named
    assert named <= PROJECT["optional-dependencies"].keys()
