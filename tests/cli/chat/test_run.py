"""`rondo run`: the answer on standard output and nothing else."""

import io
import json
from pathlib import Path

import pytest

from rondo.cli.chat.run import read_prompt
from rondo.cli.main import main as rondo

FLAGS = ("--temperature=0", "--max-tokens=6")


@pytest.fixture(autouse=True)
def home(chat_home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RONDO_HOME", str(chat_home))
    monkeypatch.delenv("RONDO_CONFIG", raising=False)


def test_only_the_answer_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert rondo(["run", "tuned", "the user asks", *FLAGS]) == 0
    text = capsys.readouterr().out
    assert rondo(["run", "tuned", "the user", "asks", *FLAGS, "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert text == result["text"] + "\n"
    assert result["model"] == "tuned"
    assert result["finish_reason"] in ("stop", "length")
    assert 0 < result["output_tokens"] <= 6
    assert result["logprob"] < 0


def test_a_schema(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    schema = tmp_path / "schema.json"
    schema.write_text('{"type": "object", "properties": {"a": {"enum": [1, 2]}}, "required": ["a"]}')
    assert rondo(["run", "tuned", "the", f"--schema={schema}", "--max-tokens=200", "--temperature=0"]) == 0
    assert json.loads(capsys.readouterr().out)["a"] in (1, 2)
    schema.write_text("{")
    assert rondo(["run", "tuned", "the", f"--schema={schema}"]) == 2
    assert "it is not JSON" in capsys.readouterr().err


def test_a_base_model_continues(capsys: pytest.CaptureFixture[str]) -> None:
    assert rondo(["run", "plain", "the user", *FLAGS]) == 0
    assert capsys.readouterr().out.strip()


def test_a_url(capsys: pytest.CaptureFixture[str], other) -> None:
    other.endless = False
    assert rondo(["run", other.url, "Hi", "--system=Be brief.", "--seed=1"]) == 0
    assert capsys.readouterr().out == "Hello from first\n"
    assert other.bodies[0]["seed"] == 1
    assert other.bodies[0]["messages"][0] == {"role": "system", "content": "Be brief."}
    assert rondo(["run", other.url, "Hi", "--model=third"]) == 4
    assert "does not serve 'third': it has first, second" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "piped", "prompt"),
    [
        (["a", "b"], "ignored", "a b"),
        (["a", "-"], "text\n", "a\n\ntext"),
        ([], "text\n", "text"),
        (["-"], "text\n", "text"),
    ],
)
def test_prompts(words: list[str], piped: str, prompt: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(piped))
    assert read_prompt(words) == prompt


def test_no_prompt(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(""))
    assert rondo(["run", "tuned"]) == 2
    assert "There is no prompt" in capsys.readouterr().err
