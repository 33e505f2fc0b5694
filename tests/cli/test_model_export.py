"""`rondo model export --gguf`, and verbs on the file."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from rondo import models
from rondo.cli.chat.source import newest_model
from rondo.cli.main import main
from rondo.models import load
from support.home import own_home
from support.tiny import tiny_model, tiny_tokenizer


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """With the model `tiny`."""
    home = own_home(tmp_path / "home")
    monkeypatch.setenv("RONDO_HOME", str(home))
    model = home / "models" / "tiny"
    models.save(tiny_model(hidden_size=64, intermediate_size=96, head_dim=16), model)
    tiny_tokenizer().save(model)
    return home


def exported(path: Path, *flags: str) -> Path:
    assert main(["model", "export", "tiny", "--gguf", str(path), *flags]) == 0
    return path


def test_types(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sizes = {
        name: exported(tmp_path / f"{name}.gguf", "--type", name).stat().st_size
        for name in ("f32", "bf16", "f16", "q8_0", "q4_0")
    }
    assert sizes["f32"] > sizes["bf16"] == sizes["f16"] > sizes["q8_0"] > sizes["q4_0"]
    assert exported(tmp_path / "default.gguf").stat().st_size == sizes["f32"]
    assert "tiny is in" in capsys.readouterr().out


def test_back_to_a_folder(tmp_path: Path) -> None:
    file = exported(tmp_path / "f.gguf")
    assert main(["model", "export", str(file), str(tmp_path / "again")]) == 0
    before = dict(load(tmp_path / "home" / "models" / "tiny").named_parameters())
    for name, parameter in load(tmp_path / "again").named_parameters():
        assert parameter.equal(before[name]), name
    assert (tmp_path / "again" / "chat_template.jinja").exists()


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ([], "Give one destination: a FOLDER, or --gguf FILE"),
        (["there", "--gguf", "f.gguf"], "Give one destination"),
        (["there", "--type", "f16"], "--type is for GGUF files"),
    ],
)
def test_mistakes(flags: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["model", "export", "tiny", *flags]) == 2
    assert message in capsys.readouterr().err


def test_an_existing_file_is_kept(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = exported(tmp_path / "f.gguf")
    before = file.read_bytes()
    assert main(["model", "export", "tiny", "--gguf", str(file), "--type", "q4_0"]) != 0
    assert "already exists" in capsys.readouterr().err
    assert file.read_bytes() == before
    assert len(exported(file, "--type", "q4_0", "--replace").read_bytes()) < len(before)


def test_verbs_on_the_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = exported(tmp_path / "f.gguf", "--type", "q8_0")
    (data := tmp_path / "data.jsonl").write_text(json.dumps({"text": "the user asks the assistant"}) + "\n")
    assert main(["model", "import", str(file), "taken"]) == 0
    capsys.readouterr()
    assert main(["model", "list", "--json"]) == 0
    assert {row["name"]: row["dtypes"] for row in json.loads(capsys.readouterr().out)} == {
        "taken": ["F32", "Q8_0"],
        "tiny": ["float32"],
    }
    assert main(["model", "import", str(file), "taken", "--replace"]) == 0
    assert newest_model() == "taken"
    capsys.readouterr()
    losses = []
    for model in ("tiny", str(file), "taken"):
        assert main(["evaluate", model, "--data", str(data), "--json"]) == 0
        losses.append(json.loads(capsys.readouterr().out)["loss"])
    assert losses[1] == losses[2] == pytest.approx(losses[0], rel=0.02)
    command = ["train", "sft", "--model", str(file), "--data", str(data)]
    (chat := tmp_path / "chat.jsonl").write_text(
        json.dumps({"prompt": "the user asks", "completion": " and the assistant answers"}) + "\n"
    )
    command[-1] = str(chat)
    assert main([*command, "--train.steps", "1"]) == 0
    result = Path(capsys.readouterr().out.splitlines()[-1])
    assert load(result).config.family == "qwen3"


def test_the_plan_of_a_file_needs_no_torch(tmp_path: Path) -> None:
    file = exported(tmp_path / "f.gguf")
    code = (
        "import sys\nfrom rondo.cli.main import main\n"
        f"assert main(['plan', {str(file)!r}, '--json']) == 0\nprint('torch' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True
    )
    *answer, imported = done.stdout.splitlines()
    assert imported == "False"
    assert json.loads("\n".join(answer))["plan"]["parameters"] > 0


def test_a_damaged_file_is_an_error_before_torch_is_imported(tmp_path: Path) -> None:
    (file := tmp_path / "bad.gguf").write_bytes(exported(tmp_path / "f.gguf").read_bytes()[:600])
    code = f"import sys\nfrom rondo.cli.main import main\nprint(main(['plan', {str(file)!r}]), 'torch' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True
    )
    assert done.stdout.split() == ["3", "False"]
    assert "bad.gguf is truncated or damaged at" in done.stderr
