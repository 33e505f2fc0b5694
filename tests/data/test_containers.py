"""JSON documents, and tables in CSV and TSV."""

import gzip
import json
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rondo.base.errors import InvalidRequest
from rondo.data.input import containers, formats
from rondo.data.input.sources import read_records, read_source

TEXTS = st.lists(st.text(max_size=8), min_size=1, max_size=6)
FRESH = settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])


@FRESH
@given(TEXTS, st.sampled_from([None, 1]), st.sampled_from(["array", "values", "data"]))
def test_json_documents_hold_what_json_reads(
    tmp_path: Path, texts: list[str], indent: int | None, kind: str
) -> None:
    records = [{"text": text} for text in texts]
    path = tmp_path / "x.json"
    document = {"version": "1.0", "data": records} if kind == "data" else records
    if kind == "values":
        path.write_text("\n".join(json.dumps(record, indent=indent) for record in records))
    else:
        path.write_text(json.dumps(document, indent=indent))
    assert read_records(path) == records


def test_a_record_of_a_json_document_has_a_number_and_a_line(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    path.write_text(json.dumps([{"text": "a"}, {"text": "b"}, {"text": 3}], indent=1))
    with pytest.raises(InvalidRequest, match=r"x\.json, record 3 \(line 8\): .*must be a string"):
        read_records(path)
    path.write_text('[{"text": "a"}, {"text": "b"}]')
    assert read_source(path).place(1).endswith("x.json, record 2 (line 1)")


@pytest.mark.parametrize(
    ("document", "problem"),
    [
        ('[\n{"text": "a"},\n{"text": "b"}', "line 3: not JSON .*array needs"),
        ('[{"text": "a"},', "not JSON .*has no end"),
        ('{"text": "a"', "line 1: not JSON"),
        ("[1, 2]", r"record 1 \(line 1\): a record is a JSON object"),
        ("[" * 100_000, "line 1: not JSON"),
        ("", "holds no records"),
        ('[{"text": "a"} {"text": "b"}]', 'needs "," or'),
    ],
)
def test_a_broken_json_document_is_located(tmp_path: Path, document: str, problem: str) -> None:
    (tmp_path / "x.json").write_text(document)
    with pytest.raises(InvalidRequest, match=problem):
        read_records(tmp_path / "x.json")


def test_a_json_document_with_the_name_of_json_lines_is_explained(tmp_path: Path) -> None:
    (tmp_path / "x.jsonl").write_text(json.dumps([{"text": "a"}], indent=1))
    with pytest.raises(InvalidRequest, match=r"line 1: .*needs a name that ends in \.json"):
        read_records(tmp_path / "x.jsonl")


def test_tables(tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_bytes('\ufefftext,id\r\n"a, ""b""\nc",1\r\n\r\nd,\r\n'.encode())
    assert read_records(tmp_path / "x.csv") == [{"text": 'a, "b"\nc', "id": "1"}, {"text": "d"}]
    turns = json.dumps([{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}])
    (tmp_path / "y.tsv").write_text(f'messages\n"{turns.replace(chr(34), chr(34) * 2)}"\n')
    assert read_records(tmp_path / "y.tsv") == [{"messages": json.loads(turns)}]
    (tmp_path / "z.csv.gz").write_bytes(gzip.compress(b"prompt,completion\na,b\n"))
    assert read_records(tmp_path / "z.csv.gz") == [{"prompt": "a", "completion": "b"}]


@pytest.mark.parametrize(
    ("table", "problem"),
    [
        ("text,id\na\n", r"row 1 \(line 2\): the row has 1 values, but the first row has 2"),
        ("text,text\na,b\n", "first row must have the field names"),
        ('text\n"a\n', "not a table"),
        ("text\n", "holds no records"),
        ("body\na\n", "no format has these fields: body"),
        ("text\n\udcff\n", "not a table"),
    ],
)
def test_a_broken_table_is_located(tmp_path: Path, table: str, problem: str) -> None:
    (tmp_path / "x.csv").write_bytes(table.encode("utf-8", "surrogateescape"))
    with pytest.raises(InvalidRequest, match=problem):
        read_records(tmp_path / "x.csv")


def test_a_json_document_has_a_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A document is read as a whole, and one of lines is not."""
    document = json.dumps([{"text": "a" * 40}])
    (tmp_path / "x.json").write_text(document)
    (tmp_path / "x.json.gz").write_bytes(gzip.compress(document.encode()))
    (tmp_path / "x.jsonl").write_text(document[1:-1])
    monkeypatch.setattr(formats, "LARGEST_JSON", len(document))
    assert len(read_records(tmp_path / "x.json")) == 1
    monkeypatch.setattr(formats, "LARGEST_JSON", len(document) - 1)
    for name in ("x.json", "x.json.gz"):
        with pytest.raises(
            InvalidRequest, match=rf"{name} has more than 5\d bytes: convert it to JSON Lines"
        ):
            read_records(tmp_path / name)
    assert len(read_records(tmp_path / "x.jsonl")) == 1


def test_a_cell_of_a_table_has_a_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "x.csv").write_text("text\n" + "a" * 200 + "\n")
    (tmp_path / "y.csv").write_text('text\nb\n"' + "a" * 150_000 + '"\n')
    assert len(read_records(tmp_path / "y.csv")[1]["text"]) == 150_000, "more than the limit of csv"
    monkeypatch.setattr(containers, "LARGEST_CELL", 100)
    with pytest.raises(InvalidRequest, match=r"x\.csv.*field larger than field limit \(100\)"):
        read_records(tmp_path / "x.csv")
