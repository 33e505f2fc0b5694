"""Every command block and program of the README and the manual runs, in order, in a fresh home."""

from pathlib import Path

import pytest

from rondo.models.store import create_model
from support.documents import ROOT, SETUP, Reader, blocks, check_output, statements
from support.tiny import tiny_model, tiny_tokenizer

FIRST_HOUR = ("README.md", "docs/guide.md")
OTHERS = sorted(
    str(file.relative_to(ROOT))
    for file in ROOT.glob("docs/*.md")
    if str(file.relative_to(ROOT)) not in FIRST_HOUR
)


def test_the_first_hour(tmp_path: Path) -> None:
    """README and guide are one path: the guide continues with the model that the README has made."""
    with Reader(tmp_path) as reader:
        for name in FIRST_HOUR:
            reader.read(ROOT / name)


@pytest.mark.parametrize("name", OTHERS)
def test_the_manual(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of the other documents, with small models of random weights under the names in it."""
    with Reader(tmp_path) as reader:
        monkeypatch.setenv("RONDO_HOME", str(reader.home))
        if any(block.kind in ("sh", "bash", "python") for block in blocks(ROOT / name)):
            for model in ("demo", "mine", "my-model", "small", "large"):
                create_model(model, tiny_model(), _tokenizer(tmp_path))
        prepare = SETUP / f"{Path(name).stem}.py"
        if prepare.exists():
            monkeypatch.chdir(reader.work)
            exec(compile(prepare.read_text(), str(prepare), "exec"), {"__name__": "prepare"})
        reader.read(ROOT / name)


def _tokenizer(folder: Path) -> Path:
    tiny_tokenizer().save(folder / "tokenizer")
    return folder / "tokenizer"


def test_statements_of_a_block() -> None:
    code = "a \\\n  b\n# comment\nc '{\n}'\n\nd  # end\n"
    assert list(statements(code)) == ["a \\\n  b", "c '{\n}'", "d  # end"]


def test_expected_output() -> None:
    output = "step 4   loss 1.5e-3 (+2.5%)\nmore\nsaved in /tmp/x\n"
    check_output("step 3  loss 0.25 (-1%)\n...\nsaved in ...x\n", output)
    with pytest.raises(AssertionError, match="no line 'b'"):
        check_output("a\nb\n", "b\na\n")
