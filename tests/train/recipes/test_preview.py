"""The preview of training examples, and `rondo data preview`."""

import io
import json
import os
import subprocess
import sys
import unicodedata
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rondo import models
from rondo.base.storage.files import atomic_dir
from rondo.cli.main import main
from rondo.cli.view.preview import preview_lines, show_preview
from rondo.train.config import Kind, TrainConfig
from rondo.train.recipes import data
from rondo.train.recipes.preview import PreviewExample, PreviewSegment, preview
from support.home import own_home
from support.tiny import tiny_model, tiny_tokenizer

SAMPLES = Path(__file__).parents[2] / "data" / "samples"


def seen(kind: Kind, name: str, **changes: Any) -> list[PreviewExample]:
    config = TrainConfig(data=str(SAMPLES / name), **changes)
    return preview(kind, data.open_data(kind, config).training, tiny_tokenizer(), config)


def test_the_parts_with_a_loss_are_marked() -> None:
    first, called = seen("sft", "chat.jsonl")
    assert first.title.endswith("chat.jsonl, line 1: 66 tokens, 2 with loss")
    assert [segment.text for segment in first.segments if segment.learned] == ["5<|im_end|>"]
    assert first.segments[0].text.endswith("user\nAgain.<|im_end|>\n<|im_start|>assistant\n")
    assert "".join(segment.text for segment in called.segments).count("<|im_start|>") == 4


@pytest.mark.parametrize(
    ("kind", "name", "expected"),
    [
        ("preference", "ultrafeedback.jsonl", [("chosen answer", "5"), ("rejected answer", "6")]),
        ("reward", "hh.jsonl", [("chosen answer", "5"), ("rejected answer", "Go away")]),
        ("preference", "kto.jsonl", [("desirable answer", "5"), ("undesirable answer", "9")]),
        ("pretrain", "text.jsonl", [("line 1", "Lima is the capital of Peru.")]),
        ("sft", "prompt_completion.jsonl", [("line 1", " 5"), ("line 2", " Lima")]),
    ],
)
def test_each_recipe_has_its_examples(kind: Kind, name: str, expected: list[tuple[str, str]]) -> None:
    kto = {"preference": {"loss": "kto"}} if name == "kto.jsonl" else {}
    found = seen(kind, name, **kto)
    for example, (label, text) in zip(found, expected, strict=True):
        assert label in example.title
        (learned,) = [segment.text for segment in example.segments if segment.learned]
        assert learned == f"{text}<|im_end|>"


def test_over_long_examples_are_shown_as_they_are_trained_on() -> None:
    short = {"max_length": 60, "tokens_per_microbatch": 64}
    for over_long in ("skip", "truncate"):  # the answer of the first record is beyond the maximum length
        (second,) = seen("sft", "chat.jsonl", over_long=over_long, **short)
        assert "line 2: 55 tokens, 12 with loss" in second.title
    (cut,) = seen("sft", "chat.jsonl", over_long="truncate", max_length=50, tokens_per_microbatch=64)
    assert "line 2: 50 tokens" in cut.title


@given(st.lists(st.text(max_size=300), max_size=4), st.integers(20, 100))
def test_lines_fit_the_terminal_and_have_no_control_characters(texts: list[str], width: int) -> None:
    segments = tuple(PreviewSegment(text, index % 2 == 1) for index, text in enumerate(texts))
    lines = list(preview_lines([PreviewExample("x" * 200, segments)], width))
    # A combining character has no column of its own.
    assert all(sum(not unicodedata.combining(each) for each in line) <= width for line in lines[1:])
    assert all(line.isprintable() for line in lines)
    assert len(lines) <= 4 + 6 * len(texts)


def test_a_long_text_is_shown_without_its_middle() -> None:
    text = "\n".join(f"line {n} " + "x" * 100 for n in range(20))
    lines = list(preview_lines([PreviewExample("t", (PreviewSegment(text, True),))]))[3:]
    assert lines[0].startswith("| line 0 x")
    assert lines[3] == "| ... 15 more lines ..."
    assert lines[5].startswith("| line 19 x")
    assert lines[5].endswith("...xxxxxxxxxxxxxxxxxxxxxxxxx")


def test_color_is_for_terminals_only(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    example = PreviewExample("t", (PreviewSegment("before", False), PreviewSegment("learned", True)))
    for stream, color in ((Terminal(), True), (io.StringIO(), False)):
        monkeypatch.delenv("NO_COLOR", raising=False)
        show_preview([example], stream)
        assert ("\x1b[32m| learned\x1b[0m\n" in stream.getvalue()) == color
        assert ("\n| learned\n" in stream.getvalue()) != color
    monkeypatch.setenv("NO_COLOR", "1")
    show_preview([example], plain := Terminal())
    assert "\x1b" not in plain.getvalue()


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("RONDO_HOME", str(own_home(tmp_path)))
    with atomic_dir(tmp_path / "model") as folder:
        models.save_into(tiny_model(), folder)
        tiny_tokenizer().save(folder)
    return tmp_path / "model"


def test_the_command_shows_the_format_with_and_without_a_model(
    model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["data", "preview", str(SAMPLES / "alpaca.json")]) == 0
    said = capsys.readouterr().out
    assert "format    Alpaca: instruction, output, input, system, history" in said
    assert "  user: Name the capital of Peru.\n| assistant: Lima\n" in said
    assert main(["data", "preview", str(SAMPLES / "alpaca.json"), "--model", str(model)]) == 0
    assert "  Name the capital of Peru.<|im_end|>\n  <|im_start|>assistant\n| Lima<|im_end|>\n" in (
        capsys.readouterr().out
    )
    assert main(["data", "preview", str(SAMPLES / "gsm8k.tsv"), "--format", "alpaca"]) != 0
    assert 'no "instruction" and no "output"' in capsys.readouterr().err


def test_training_tells_the_format_and_previews(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = model.parent / "data.jsonl"
    records = [{"question": f"ask {i}", "answer": str(i)} for i in range(20)]
    file.write_text("\n".join(map(json.dumps, records)))
    command = ["train", "sft", "--model", str(model), "--data", str(file), "--train.epochs=1"]
    assert main([*command, "--train.max_length=200"]) == 0
    said = capsys.readouterr().err
    assert "18 records, 2 more held out\nformat    question/answer: question, answer\n" in said
    assert said.count("| 1") >= 1
    assert "with loss" in said
    assert main([*command, "--train.max_length=201", "--train.preview=0"]) == 0
    assert "with loss" not in capsys.readouterr().err


@pytest.mark.parametrize("verb", ["sft", "rl"])
def test_a_bad_file_is_reported_without_torch(model: Path, verb: str) -> None:
    file = model.parent / "bad.jsonl"
    file.write_text('{"instruciton": "a", "output": "b"}\n' if verb == "sft" else '{"prompt": "a"}\n')
    program = (
        "import sys\nfrom rondo.cli.main import main\ncode = main(sys.argv[1:])\n"
        "print(code, 'torch' in sys.modules)"
    )
    sft = ["train", "sft", "--model", str(model), "--data", str(file)]
    rl = ["rl", "--model", str(model), "--task", str(file), '--rl.grader={"type": "match"}']
    done = subprocess.run(
        [sys.executable, "-c", program, *(sft if verb == "sft" else rl)],
        capture_output=True,
        text=True,
        timeout=300,
        env=os.environ.copy(),
    )
    code, torch = done.stdout.split()
    assert code != "0"
    assert torch == "False"
    assert "bad.jsonl, line 1: no " in done.stderr
