"""Names of models that this machine does not have: a quick error with the command that remedies it."""

import subprocess
import sys
from pathlib import Path

import pytest

from rondo.cli.main import main
from rondo.hub.names import PUBLISHED
from rondo.plan.sizes.shapes import SHAPES


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("RONDO_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.delenv("RONDO_CONFIG", raising=False)
    return tmp_path / "home"


@pytest.mark.parametrize(
    "argv",
    [
        ["run", "absent", "hello"],
        ["chat", "absent"],
        ["rl", "--model", "absent", "--task", "reverse"],
        ["serve", "absent"],
        ["train", "sft", "--model", "absent", "--data", "x.jsonl"],
        ["evaluate", "absent", "--data", "x.jsonl"],
    ],
    ids=lambda argv: argv[0],
)
def test_an_unknown_model_is_reported_before_torch_is_imported(argv: list[str]) -> None:
    code = f"import sys\nfrom rondo.cli.main import main\ncode = main({argv})\nprint(code, 'torch' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True
    )
    assert done.stdout.splitlines()[-1] == "4 False"
    assert "There is no model 'absent'" in done.stderr


def test_every_model_of_the_rl_command_is_resolved_first(
    capsys: pytest.CaptureFixture[str], home: Path
) -> None:
    (home / "models/m").mkdir(parents=True)
    (home / "models/m/config.json").write_text("{}")
    for setting in ("reward_model.model", "distill.teacher"):
        assert main(["rl", "--model=m", "--task=reverse", f"--{setting}=absent"]) == 4
        assert f"error: rl.{setting}: There is no model 'absent'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "meant"), [("qwen3-0.6b", "Qwen/Qwen3-0.6B"), ("Qwen3-8b", "Qwen/Qwen3-8B")]
)
def test_a_published_model_is_named_with_its_repository(
    name: str, meant: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["run", name, "hello"]) == 4
    assert f"`rondo pull {meant}`" in capsys.readouterr().err


def test_models_of_the_planner_have_a_repository() -> None:
    assert SHAPES.keys() - PUBLISHED.keys() == {"gpt-3-175b", "mt-530b", "bloom-176b"}
    assert PUBLISHED.keys() <= SHAPES.keys()


def test_an_empty_list_names_commands_that_lead_to_a_trained_model(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["model", "list"]) == 0
    out = capsys.readouterr().out
    assert "`rondo demo`" in out
    assert "`rondo pull ORG/NAME`" in out
