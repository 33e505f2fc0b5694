"""What a shell completes: verbs, models, jobs, settings and their values."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from rondo.cli.completion.candidates import candidates
from rondo.cli.main import VERBS, main
from rondo.cli.options.tree import setting_keys
from support.shells import Shell, bash

JOB = "abcdef0123456789"


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("RONDO_HOME", str(tmp_path))
    monkeypatch.delenv("RONDO_CONFIG", raising=False)
    (tmp_path / "models" / "demo").mkdir(parents=True)
    (tmp_path / "models" / ".unfinished").mkdir()
    job = tmp_path / "jobs" / JOB
    job.mkdir(parents=True)
    (job / "spec.json").write_text(json.dumps({"kind": "sft"}))
    (job / "origin.json").write_text(json.dumps({"name": "first", "model": "demo", "started": 1.0}))
    return tmp_path


def words(line: str) -> list[str]:
    return [value for value, _ in candidates(line.split(" "))]


def test_verbs_and_verbs_below_them():
    assert set(VERBS) <= set(words(""))
    assert words("tr") == ["train"]
    assert "ls" in words("")
    assert words("train ") == ["pretrain", "sft", "preference", "reward"]
    assert {"new", "list"} <= set(words("model "))
    assert "alarms" in words("rl ")
    assert words("nonsense ") == []


def test_models_and_jobs():
    assert words("serve ") == ["demo", "first", JOB[:12], "@folders"]
    assert words("serve d") == ["demo", "@folders"]
    assert words("train sft --model d") == ["demo", "@folders"]
    assert words("train sft --model=d") == ["--model=demo", "@folders"]
    assert words("job show ") == ["first", JOB[:12]]
    assert words("rl alarms f") == ["first"]
    assert dict(candidates(["job", "show", ""]))["first"] == "sft demo"
    assert words("evaluate demo ") == []


def test_settings_and_their_values():
    assert {"--lr", "--lora"} <= set(words("train sft --l"))
    assert "--train.preference.beta" not in words("train sft --train.")
    assert "--train.preference.beta" in words("train preference --train.")
    assert words("train sft --decay ") == ["cosine", "linear", "constant", "wsd"]
    assert words("train sft --train.decay=co") == ["--train.decay=cosine", "--train.decay=constant"]
    assert words("serve demo --engine v") == ["vllm"]
    assert words("serve demo --kv-cache-dtype i") == ["int8"]
    assert words("rl --algorithm gr") == ["grpo"]
    assert words("train sft --adapter.kind l") == ["lora"]
    assert set(words("config --explain ")) == set(setting_keys())
    assert words("completion ") == ["bash", "zsh", "fish"]
    assert words("plan --precision ") == ["bf16", "fp16", "fp8"]


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_completes_its_flags(verb: str):
    below = [word for word in words(f"{verb} ") if not word.startswith(("-", "@"))]
    assert "--help" in words(f"{verb} --") or all("--help" in words(f"{verb} {one} --") for one in below)


def test_candidates_are_lines(capsys: pytest.CaptureFixture[str]):
    assert main(["completion", "--words", "tr"]) == 0
    assert capsys.readouterr().out == f"train\t{VERBS['train'][1]}\n"


@pytest.mark.parametrize("line", ["", "train sft --", "train sft --l", "serve ", "model ", "job show "])
def test_nothing_heavy_is_imported(line: str):
    code = (
        "import sys\nfrom rondo.cli.main import main\n"
        f"main({['completion', '--words', *line.split(' ')]})\n"
        "print([name for name in ('torch', 'rich', 'httpx', 'numpy', 'transformers') if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True, env=os.environ
    )
    assert done.stdout.splitlines()[-1] == "[]"


@pytest.fixture
def shell(home: Path) -> Shell:
    (home / "notes.txt").touch()
    return bash(home)


@pytest.mark.parametrize(
    ("typed", "shown"),
    [
        ("rondo tra", "rondo train "),
        ("rondo model qu", "rondo model quantize "),
        ("rondo serve de", "rondo serve demo "),
        ("rondo job show fi", "rondo job show first "),
        ("rondo train sft --chec", "rondo train sft --checkpointing "),
        ("rondo train sft --decay=co\t", "cosine"),
        ("rondo train sft --decay=cos", "rondo train sft --decay=cosine "),
        ("rondo data prepare no", "rondo data prepare notes.txt "),
        ("rondo train sft --data=no", "rondo train sft --data=notes.txt "),
    ],
)
def test_bash(shell: Shell, typed: str, shown: str):
    shell.completes(typed, shown)
