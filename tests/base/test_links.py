"""The links between our documents."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DOCUMENTS = [ROOT / "README.md", *sorted(ROOT.glob("docs/*.md")), *sorted(ROOT.glob("bench/*.md"))]
LINK = re.compile(r"""\]\(\s*<?([^)\s>]+)|(?:href|src|srcset)="([^"]+)"|^\[[^\]]+\]:\s*(\S+)""", re.MULTILINE)
CODE = re.compile(r"^(```|~~~).*?^\1|`[^`\n]*`", re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_relative_links_lead_to_files(document: Path) -> None:
    text = CODE.sub("", document.read_text())
    links = {next(filter(None, found)) for found in LINK.findall(text)}
    relative = {link.partition("#")[0] for link in links if not re.match(r"[a-z]+:|#", link)}
    targets = {link: (document.parent / link).resolve() for link in relative}
    lost = sorted(link for link, path in targets.items() if not path.exists())
    outside = sorted(link for link, path in targets.items() if not path.is_relative_to(ROOT))
    assert (lost, outside) == ([], [])
