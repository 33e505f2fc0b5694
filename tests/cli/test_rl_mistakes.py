"""What `rondo rl` says to who mistypes: the one thing that is wrong, and what to write in its place."""

from pathlib import Path

import pytest

from rondo.cli.main import main


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("RONDO_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("RONDO_CONFIG", raising=False)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "home/models/m").mkdir(parents=True)
    (tmp_path / "home/models/m/config.json").write_text("{}")
    (tmp_path / "bad_day.py").write_text("x = 1\nraise ValueError('bad day')\n")
    (tmp_path / "no_python.py").write_text("def x(:\n")
    (tmp_path / "lacks.py").write_text("import no_such_package\n")
    (tmp_path / "broken.jsonl").write_text('{"prompt": "a", "answer": "b"}\n{"prompt": "c", "answer":\n')
    return tmp_path


MATH = '--rl.grader={"type": "math"}'


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["--stepz=3"], "Unrecognized arguments: --stepz=3. Did you mean --steps? See rondo rl --help."),
        (["--rl.stepz=3"], "Unknown config key rl.stepz (the flag --rl.stepz). Did you mean rl.steps?"),
        (["--rl.grader.type=math"], "rl.grader is written whole: --rl.grader='{\"type\": ...}'."),
        (["--rl.grader", "math"], "it must be a JSON object"),
        (
            ["rollout"],
            "'rollout' is no file of settings, which ends in .toml. Did you mean `rondo rl rollouts JOB`?",
        ),
        (["guess"], "Did you mean --task guess?"),
        (["--model=m", "--task=nosuch"], "There is no task 'nosuch'. Tasks: reverse, add,"),
        (["--model=m", "--task=bad_day.py"], "Which task in bad_day.py? Give its name too: bad_day.py:TASK."),
        (["--model=m", "--task=bad_day.py:TASK"], "ValueError: bad day ({folder}/bad_day.py, line 2)"),
        (["--model=m", "--task=no_python.py:TASK"], "SyntaxError: invalid syntax (no_python.py, line 1)"),
        (["--model=m", "--task=lacks.py:TASK"], "No module named 'no_such_package'. Is it installed"),
        (
            ["--model=m", "--task=broken.jsonl"],
            'line 1: no "grader" in this record, and rl.grader is not set',
        ),
        (["--model=m", "--task=broken.jsonl", MATH], "broken.jsonl, line 2: not JSON"),
        (["rollouts", "abcdef", "--limit=0"], "--limit: it must be a number of at least 1, not '0'"),
    ],
)
def test_a_mistake_is_named_with_what_to_write(
    argv: list[str], said: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["rl", *argv]) != 0
    error = capsys.readouterr().err
    assert said.replace("{folder}", str(folder)) in error
    assert "Traceback" not in error
    assert not (folder / "home" / "jobs").exists(), "no job is made of it"
