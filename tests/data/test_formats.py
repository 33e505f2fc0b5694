import gzip
import json
import sys
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rondo.base.errors import ConfigError, InvalidRequest, MissingExtra, NotFound
from rondo.base.storage import remote
from rondo.data.input import formats
from rondo.data.input.formats import Form, lines_before, parts_of, read_part
from rondo.data.input.sources import read_records
from rondo.data.storage.places import SourceFile, find_files


def file_of(path: Path) -> SourceFile:
    (file,) = find_files(str(path), (path.suffix,))
    return file


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(st.sampled_from(["", "a", "bb", "cccc", "d" * 30]), min_size=1, max_size=20),
    st.integers(1, 40),
    st.booleans(),
)
def test_each_line_is_in_one_part_and_its_number_is_right(
    tmp_path: Path, lines: list[str], size: int, ended: bool
) -> None:
    path = tmp_path / "x.txt"
    path.write_text("\n".join(lines) + "\n" * ended)
    form = Form(text="line")
    found = [
        (lines_before(part) + each.number, each.record["text"])
        for part in parts_of(file_of(path), form, size)
        for each in read_part(part, form)
        if each.record
    ]
    assert found == [(number, line) for number, line in enumerate(lines, 1) if line]


def test_parquet_by_row_groups(tmp_path: Path) -> None:
    rows = [{"body": f"row {n}", "other": n} for n in range(50)]
    rows[33]["body"] = None
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / "x.parquet", row_group_size=10)
    form = Form(fields={"text": "body"})
    parts = parts_of(file_of(tmp_path / "x.parquet"), form, 1)
    found = [(lines_before(part) + each.number, each) for part in parts for each in read_part(part, form)]
    assert len(parts) == 5
    assert [number for number, _ in found] == list(range(1, 51))
    assert [each.record for _, each in found[:2]] == [{"text": "row 0"}, {"text": "row 1"}]
    assert [(number, each.problem) for number, each in found if each.record is None] == [
        (34, 'no "body" in this record')
    ]
    with pytest.raises(
        InvalidRequest, match=r"no format has these fields: body, other\. .*--field text=body"
    ):
        read_records(tmp_path / "x.parquet")
    (tmp_path / "y.parquet").write_text("text")
    with pytest.raises(InvalidRequest, match="not a Parquet file"):
        read_records(tmp_path / "y.parquet")


def test_conversations_come_out_of_parquet(tmp_path: Path) -> None:
    said = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "ho"}]
    call = {"function": {"name": "f", "arguments": "{}"}}
    called = [{"role": "user", "content": "hi"}, {"role": "assistant", "tool_calls": [call]}]
    table = pyarrow.Table.from_pylist([{"messages": said}, {"messages": called}])
    pyarrow.parquet.write_table(table, tmp_path / "x.parquet")
    assert read_records(tmp_path / "x.parquet") == [{"messages": said}, {"messages": called}]


@pytest.mark.parametrize("suffix", [".gz", ".zst"])
def test_compressed_files(tmp_path: Path, suffix: str) -> None:
    data = b"".join(json.dumps({"text": f"line {n}"}).encode() + b"\n" for n in range(1000))
    path = tmp_path / f"x.jsonl{suffix}"
    packed = gzip.compress(data) if suffix == ".gz" else pyarrow.compress(data, "zstd", asbytes=True)
    path.write_bytes(packed)
    assert [record["text"] for record in read_records(path)] == [f"line {n}" for n in range(1000)]
    assert len(parts_of(file_of(path), Form(), 10)) == 1
    path.write_bytes(packed[:-20])
    with pytest.raises(InvalidRequest, match=r"x\.jsonl.*(damaged|cannot be read) after line"):
        read_records(path)


def test_a_text_file_is_one_document_or_one_a_line(tmp_path: Path) -> None:
    (tmp_path / "x.txt").write_text("one\n\ntwo\n")
    assert read_records(tmp_path / "x.txt") == [{"text": "one\n\ntwo\n"}]
    assert read_records(tmp_path / "x.txt", Form(text="line")) == [{"text": "one"}, {"text": "two"}]
    (tmp_path / "x.txt").write_bytes(b"good\n\xff\n")
    with pytest.raises(InvalidRequest, match="line 2: not text in UTF-8"):
        read_records(tmp_path / "x.txt", Form(text="line"))


def test_fields_may_have_other_names(tmp_path: Path) -> None:
    (tmp_path / "x.jsonl").write_text('{"content": "a", "text": "b"}\n{"text": "c"}\n')
    with pytest.raises(InvalidRequest, match='line 2: no "content"'):
        read_records(tmp_path / "x.jsonl", Form({"text": "content"}))
    (tmp_path / "x.jsonl").write_text('{"q": "a", "a": "b"}\n')
    assert read_records(tmp_path / "x.jsonl", Form({"prompt": "q", "completion": "a"})) == [
        {"prompt": "a", "completion": "b"}
    ]


def test_a_bounded_number_of_broken_lines_may_be_left_out(tmp_path: Path) -> None:
    (tmp_path / "x.jsonl").write_text('{"text": "a"}\n{\n[]\n')
    assert read_records(tmp_path / "x.jsonl", max_broken=2) == [{"text": "a"}]
    with pytest.raises(InvalidRequest, match=r"more than the 1 broken records .* line 2: .*; .* line 3: "):
        read_records(tmp_path / "x.jsonl", max_broken=1)


def test_a_missing_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "x.parquet").touch()
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(MissingExtra, match=r"pip install 'rondo-lab\[data\]'"):
        read_records(tmp_path / "x.parquet")
    monkeypatch.setitem(sys.modules, "s3fs", None)
    remote._store.cache_clear()
    with pytest.raises(MissingExtra, match=r"pip install 'rondo-lab\[s3\]'"):
        read_records("s3://bucket/x.jsonl")
    with pytest.raises(ConfigError, match="no kind of store called nowhere://"):
        read_records("nowhere://bucket/x.jsonl")


def test_a_file_of_another_kind_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x.pdf").touch()
    with pytest.raises(InvalidRequest, match=r"a file name ends in its format, one of \.jsonl"):
        read_records(tmp_path / "x.pdf")
    with pytest.raises(NotFound, match="or a folder that holds some"):
        read_records(tmp_path)


def test_a_parquet_footer_is_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = pyarrow.Table.from_pylist([{"text": f"row {n}"} for n in range(9)])
    pyarrow.parquet.write_table(table, tmp_path / "x.parquet", row_group_size=2)
    opened, given = [], []
    real_open, real_file = formats.open_file, pyarrow.parquet.ParquetFile
    monkeypatch.setattr(formats, "open_file", lambda name: (opened.append(name), real_open(name))[1])
    monkeypatch.setattr(
        pyarrow.parquet,
        "ParquetFile",
        lambda raw, metadata=None: (given.append(metadata), real_file(raw, metadata=metadata))[1],
    )
    assert len(read_records(tmp_path / "x.parquet")) == 9
    assert (len(opened), given.count(None)) == (2, 1)
    parts = parts_of(file_of(tmp_path / "x.parquet"), Form(), 1)
    assert [lines_before(part) for part in parts] == [0, 2, 4, 6, 8]
    assert len(opened) == 2
