from pathlib import Path

import pytest

from rondo.base.errors import InvalidRequest, NotFound
from rondo.data.input.sources import dataset_hash, read_records


def write(path: Path, *lines: str) -> Path:
    path.write_text("\n".join(lines) + "\n")
    return path


def test_the_three_kinds_of_record_and_a_folder_of_files(tmp_path: Path) -> None:
    write(tmp_path / "b.jsonl", '{"prompt": "a", "completion": "b"}')
    write(tmp_path / "a.jsonl", '{"text": "x"}')
    write(tmp_path / "aa.jsonl", "", '{"messages": [{"role": "assistant", "content": "hi"}]}')
    records = read_records(tmp_path)
    assert [sorted(r) for r in records] == [["text"], ["messages"], ["completion", "prompt"]]
    assert dataset_hash(records) == dataset_hash(read_records(tmp_path))
    assert dataset_hash(records) != dataset_hash(records[:2])


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("{", "not JSON"),
        ("[" * 100_000, "not JSON"),
        ('{"text": ' + "9" * 5000 + "}", "not JSON"),
        ("[]", "JSON object"),
        ('{"txt": "a"}', 'no "text"'),
        ('{"text": 3}', "must be a string, not int"),
        ('{"prompt": "a"}', 'no "completion"'),
        ('{"messages": []}', "at least one message"),
        ('{"messages": [{"content": "a"}]}', r'messages\[0\].*"role"'),
        ('{"messages": [{"role": "user", "content": 1}]}', '"content" must be text'),
        ('{"messages": [{"role": "assistant"}]}', "neither"),
        ('{"messages": [{"role": "user", "content": "a"}]}', "no assistant message"),
    ],
)
def test_a_broken_line_is_named(tmp_path: Path, line: str, problem: str) -> None:
    file = write(tmp_path / "x.jsonl", "", line)
    with pytest.raises(InvalidRequest, match=f"line 2: .*{problem}"):
        read_records(file)


def test_no_file_and_no_records(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match=r"no data at .*nothing\.jsonl"):
        read_records(tmp_path / "nothing.jsonl")
    with pytest.raises(InvalidRequest, match="no records"):
        read_records(write(tmp_path / "x.jsonl", ""))
