"""`rondo model quantize`: what it says, where it writes, which text it reads, and what it refuses."""

import json
from pathlib import Path
from typing import Any

import pytest

from rondo.cli.main import main
from rondo.models import save
from support.home import own_home
from support.tiny import tiny_model, tiny_tokenizer

SHAPE = {"hidden_size": 64, "intermediate_size": 96, "head_dim": 16}
SAID = "the user asks and the assistant answers "
GPTQ = ("--method", "gptq", "--group-size", "32")
INT8 = ("--method", "int8")
TEXTS = {
    "data.txt": SAID * 40,
    "text.jsonl": json.dumps({"text": SAID * 40}),
    "completions.jsonl": json.dumps({"prompt": SAID * 20, "completion": SAID * 20}),
    "messages.jsonl": json.dumps(
        {
            "messages": [
                {"role": "user", "content": SAID * 20},
                {"role": "assistant", "content": None, "tool_calls": [{}]},
                {"role": "assistant", "content": SAID * 20},
            ]
        }
    ),
    "folder": None,
}


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = own_home(tmp_path / "home")
    monkeypatch.setenv("RONDO_HOME", str(folder))
    return folder


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    save(tiny_model(**SHAPE), tmp_path / "tiny")
    tiny_tokenizer().save(tmp_path / "tiny")
    return tmp_path / "tiny"


def call(capsys: pytest.CaptureFixture[str], *argv: object, code: int = 0) -> str:
    assert main(["model", "quantize", *map(str, argv)]) == code
    captured = capsys.readouterr()
    return captured.err.splitlines()[-1] if code else captured.out


def weights(folder: Path) -> bytes:
    return (folder / "model.safetensors").read_bytes()


def test_what_it_says(folder: Path, home: Path, capsys: Any):
    said = call(capsys, folder, *GPTQ)
    assert "tiny-gptq is in" in said
    assert "perplexity  " in said
    assert "held out" in said
    assert (home / "models/tiny-gptq/tokenizer.json").is_file()
    refused = call(capsys, folder, *INT8, "--group-size", 32, code=2)
    assert "--group-size is of awq and gptq; int8 has a fixed group size" in refused
    assert "quantized already (gptq)" in call(capsys, "tiny-gptq", *INT8, code=2)


@pytest.mark.parametrize(
    ("out", "place"),
    [((), "home/models/tiny-int8"), (("--out", "other"), "home/models/other"), (("--out", "./here"), "here")],
)
def test_what_is_there_is_kept_unless_it_is_to_be_replaced(
    out: tuple[str, ...],
    place: str,
    folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: Any,
):
    monkeypatch.chdir(tmp_path)
    there, argv = tmp_path / place, (folder, *INT8, *out)
    call(capsys, *argv)
    (there / "left over").touch()
    before = weights(there)
    save(tiny_model(seed=1, **SHAPE), tmp_path / "again")
    (tmp_path / "again/model.safetensors").replace(folder / "model.safetensors")
    assert f"{there.name} already exists and is not empty" in call(capsys, *argv, code=5)
    assert weights(there) == before
    assert f"{there.name} is in " in call(capsys, *argv, "--replace")
    assert weights(there) != before
    assert not (there / "left over").exists()


def test_a_failure_leaves_what_was_to_be_replaced(folder: Path, tmp_path: Path, capsys: Any):
    argv = (folder, *INT8, "--out", tmp_path / "out", "--replace")
    call(capsys, *argv)
    before = weights(tmp_path / "out")
    (tmp_path / "short.txt").write_text(SAID)
    assert "give more" in call(capsys, *argv, "--data", tmp_path / "short.txt", code=2)
    assert weights(tmp_path / "out") == before
    for place in (folder, folder.parent):
        assert "is the model itself" in call(capsys, folder, *INT8, "--out", place, "--replace", code=2)
    assert "is not a plain folder" in call(capsys, *argv[:-2], tmp_path / "short.txt", "--replace", code=5)


@pytest.mark.parametrize("name", TEXTS)
def test_text_of_ones_own(name: str, folder: Path, tmp_path: Path, capsys: Any):
    """All of it is read, in whatever form: every kind of file here says the same."""
    (tmp_path / "folder").mkdir()
    file = tmp_path / name
    if TEXTS[name] is None:
        file = file / "some.jsonl"
    file.write_text(TEXTS[name] or TEXTS["text.jsonl"])
    answers = {}
    for argv in (GPTQ, INT8):
        out = tmp_path / argv[1]
        said = call(capsys, folder, *argv, "--data", tmp_path / name, "--out", out, "--json")
        answers[argv] = json.loads(said)
        assert answers[argv]["path"] == str(out)
        assert answers[argv]["method"] == argv[1]
    tokens = len(tiny_tokenizer().encode(SAID * 40))
    assert tokens / 16 < answers[INT8]["held_out_tokens"] < tokens / 8
    assert answers[GPTQ]["perplexity_before"] == answers[INT8]["perplexity_before"]
    assert answers[INT8]["perplexity_after"] == pytest.approx(answers[INT8]["perplexity_before"], rel=0.05)
    assert answers[INT8]["bytes_after"] < answers[INT8]["bytes_before"]
    built_in = json.loads(call(capsys, folder, *GPTQ, "--out", tmp_path / "built-in", "--json"))
    assert built_in["held_out_tokens"] > answers[GPTQ]["held_out_tokens"]
    assert weights(tmp_path / "built-in") != weights(tmp_path / "gptq"), "calibrated by the same text"


@pytest.mark.parametrize(
    ("name", "content", "code", "says"),
    [
        ("none.txt", None, 4, "none.txt: No such file"),
        (
            "none.jsonl",
            None,
            4,
            "none.jsonl: name a .jsonl, .txt or .parquet file, or a folder that holds some",
        ),
        ("folder", None, 4, "folder: name a .jsonl, .txt or .parquet file, or a folder that holds some"),
        ("folder.txt", None, 4, "folder.txt: Is a directory"),
        ("binary.txt", b"\xff\xfe\0", 2, "binary.txt is not text in UTF-8"),
        ("binary.jsonl", b"\xff\xfe\0", 2, "binary.jsonl, line 1: not JSON"),
        ("empty.txt", b"", 2, "the text has 0 tokens, and 64 are the least that tells anything: give more."),
        ("empty.jsonl", b"", 2, "empty.jsonl holds no records"),
        ("deep.jsonl", b"[" * 100_000, 2, "deep.jsonl, line 1: not JSON"),
        ("digits.jsonl", b'{"text": ' + b"9" * 5000 + b"}", 2, "digits.jsonl, line 1: not JSON"),
        ("other.jsonl", b'{"words": "a"}', 2, "other.jsonl, line 1: no format has these fields"),
        ("surrogate.jsonl", b'{"text": "\\ud800"}', 2, "lone surrogates"),
        ("~nobody-here/x.txt", None, 2, "--data '~nobody-here/x.txt' is no path: there is no user"),
        ("x" * 300, None, 2, "longer than the file system allows"),
    ],
)
def test_text_that_cannot_be_read(
    name: str, content: bytes | None, code: int, says: str, folder: Path, tmp_path: Path, capsys: Any
):
    if name.startswith("folder"):
        (tmp_path / name).mkdir()
    elif content is not None:
        (tmp_path / name).write_bytes(content)
    data = name if name.startswith("~") else tmp_path / name
    said = call(capsys, folder, *INT8, "--out", tmp_path / "out", "--data", data, code=code)
    assert said.startswith("error: ")
    assert says in said
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        (("--method", "int4"), "invalid choice: 'int4'"),
        ((), "required: --method"),
        (("--method", "awq", "--group-size", "12"), "'12' is not a multiple of 8, or -1 for whole rows"),
        (("--method", "awq", "--group-size", "many"), "'many' is not a multiple of 8"),
        ((*INT8, "--out", "~nobody-here/x"), "--out '~nobody-here/x' is no path: there is no user"),
        ((*INT8, "--out", "/" + "x" * 300), "longer than the file system allows"),
    ],
)
def test_mistakes(argv: tuple[str, ...], says: str, folder: Path, capsys: Any):
    assert says in call(capsys, folder, *argv, code=2)
