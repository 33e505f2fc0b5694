"""The links between our documents."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DOCUMENTS = [*sorted(ROOT.glob("*.md")), *sorted(ROOT.glob("docs/**/*.md")), *sorted(ROOT.glob("bench/*.md"))]
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


def anchors_of(document: Path) -> set[str]:
    """Anchors of the headings, as GitHub makes them, and of `<a id="...">`."""
    headings = re.findall(
        r"^#+ (.+)$", re.sub(r"^(```|~~~).*?^\1", "", document.read_text(), flags=re.M | re.S), re.M
    )
    named = set(re.findall(r'<a id="([^"]+)">', document.read_text()))
    return named | {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_into_a_document_lead_to_its_headings(document: Path) -> None:
    for link in re.findall(r"\]\(([^)\s]*#[^)\s]+)\)", CODE.sub("", document.read_text())):
        file, _, anchor = link.partition("#")
        target = (document.parent / file) if file else document
        if not re.match(r"[a-z]+:", link):
            assert anchor in anchors_of(target), link


@pytest.mark.parametrize("name", ["guide", "serving"])
def test_contents_name_every_section(name: str) -> None:
    text = (ROOT / "docs" / f"{name}.md").read_text()
    sections = re.findall(r"^## (.+)$", re.sub(r"^```.*?^```", "", text, flags=re.M | re.S), re.M)
    assert re.findall(r"^\d+\. \[(.+)\]\(#", text, re.M) == sections


def test_each_decision_is_listed_and_complete() -> None:
    listed = (ROOT / "docs" / "architecture.md").read_text()
    for record in sorted(ROOT.glob("docs/adr/*.md")):
        assert f"(adr/{record.name})" in listed, record.name
        text = record.read_text()
        parts = ("Status: ", "**Context.**", "**Decision.**", "**Alternatives.**", "**Consequences.**")
        assert [part for part in parts if part not in text] == [], record.name
