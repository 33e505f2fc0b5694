import contextlib
import json
import os
import pty
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from rondo.cli.main import main
from rondo.cli.subcommands.model_new import ARCHITECTURES, PRESETS
from rondo.cli.view.progress import byte_progress
from rondo.models import load, parse
from rondo.models.families import FAMILIES
from rondo.models.files.mapping import to_hf

SMALL = [
    "--hidden-size",
    "16",
    "--layers",
    "1",
    "--heads",
    "2",
    "--intermediate-size",
    "24",
    "--vocab-size",
    "32",
]

HUGE = ["new", "m", "--preset", "tiny", "--vocab-size", str(2**31 - 1), "--hidden-size", str(2**20)]
"""More than any machine can promise."""


@pytest.fixture(autouse=True)
def own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("RONDO_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


def call(capsys: pytest.CaptureFixture[str], *argv: str, code: int = 0) -> str:
    assert main(["model", *argv]) == code
    captured = capsys.readouterr()
    if code:
        assert captured.err.splitlines()[-1].startswith("error: ")
        return captured.err.splitlines()[-1]
    return captured.out


def test_the_life_of_a_model(own_home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    assert "no models" in call(capsys, "list")
    assert "demo (qwen3, 853.38K parameters)" in call(capsys, "new", "demo", "--preset", "tiny")
    call(capsys, "export", "demo", str(tmp_path / "out"))
    call(capsys, "import", str(tmp_path / "out"), "again")
    names = [row["name"] for row in json.loads(call(capsys, "list", "--json"))]
    assert names == ["again", "demo"]
    first, second = own_home / "models/demo", own_home / "models/again"
    for file in ("config.json", "model.safetensors"):
        assert (first / file).read_bytes() == (second / file).read_bytes()
    facts = json.loads(call(capsys, "inspect", "again", "--json"))
    assert (facts["family"], facts["parameters"], facts["dtypes"]) == ("qwen3", 853_376, ["float32"])
    assert set(facts["adapter_targets"]) == {
        "q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"
    }  # fmt: skip
    assert "853.38K (853,376)" in call(capsys, "inspect", "again")


def test_transformers_loads_what_new_made(own_home: Path, capsys: pytest.CaptureFixture[str]):
    from transformers import AutoModelForCausalLM

    call(
        capsys, "new", "m", "--family", "llama", *SMALL, "--context", "64", "--dtype", "bfloat16", "--no-tie"
    )
    theirs = AutoModelForCausalLM.from_pretrained(own_home / "models/m")
    assert type(theirs).__name__ == "LlamaForCausalLM"
    assert theirs.dtype == torch.bfloat16
    ours = dict(to_hf(load(own_home / "models/m")))
    assert all(torch.equal(ours[name], tensor) for name, tensor in theirs.state_dict().items())


def test_flags_over_a_config_file(tmp_path: Path, own_home: Path, capsys: pytest.CaptureFixture[str]):
    file = tmp_path / "base.json"
    file.write_text(json.dumps(PRESETS["tiny"]))
    call(
        capsys,
        "new",
        "m",
        "--hf-config",
        str(file),
        "--layers",
        "2",
        "--set",
        "rope_theta=5000",
        "--seed",
        "3",
    )
    config = json.loads((own_home / "models/m/config.json").read_text())
    assert (config["num_hidden_layers"], config["rope_theta"], config["hidden_size"]) == (2, 5000, 128)
    assert config["architectures"] == ["Qwen3ForCausalLM"]


def test_tokenizer_comes_along(tmp_path: Path, own_home: Path, capsys: pytest.CaptureFixture[str]):
    from rondo.text.bpe import train_bpe
    from rondo.text.tokenizer import Tokenizer

    folder = tmp_path / "tok"
    folder.mkdir()
    tokenizer = train_bpe(["some words to learn from, and some more words"] * 20, vocab_size=300)
    tokenizer.save(folder)
    (folder / "model.safetensors").write_text("somebody else's weights")
    call(capsys, "new", "m", "--preset", "tiny", "--tokenizer", str(folder))
    made = own_home / "models/m"
    config = json.loads((made / "config.json").read_text())
    assert config["vocab_size"] == tokenizer.vocab_size
    again = Tokenizer.load(made)
    assert again.encode("some words") == tokenizer.encode("some words")
    assert again.eos_ids == tokenizer.eos_ids

    call(capsys, "export", "m", str(tmp_path / "out"))
    assert (tmp_path / "out/tokenizer.json").read_bytes() == (folder / "tokenizer.json").read_bytes()
    message = call(
        capsys, "new", "n", "--preset", "tiny", "--tokenizer", str(folder), "--vocab-size", "10", code=2
    )
    assert f"needs --vocab-size {tokenizer.vocab_size} or more" in message
    (tmp_path / "out/tokenizer.json").write_text("{broken")
    call(capsys, "import", str(tmp_path / "out"), "broken", code=3)
    assert not (own_home / "models/broken").exists()


@pytest.mark.parametrize(
    ("argv", "code", "message"),
    [
        (["new", "m"], 2, "Say what to make"),
        (["new", "m", "--preset", "huge"], 2, "invalid choice: 'huge'"),
        (["new", "m", "--family", "lama"], 3, "Did you mean 'llama'?"),
        (["new", "m", "--family", "llama"], 3, "lacks"),
        (["new", "m", "--preset", "tiny", "--layers", "0"], 2, "'0' is not a whole number above 0"),
        (["new", "m", "--preset", "tiny", "--set", "x"], 2, "write --set key=value"),
        (["new", "m", "--hf-config", "absent.json"], 2, "Cannot read absent.json"),
        (["new", "m", "--preset", "tiny", "--seed", "9" * 20], 2, "from 0 to 2**63 - 1"),
        (["new", "m", "--preset", "tiny", "--seed", "-1"], 2, "from 0 to 2**63 - 1"),
        (["new", "m", "--preset", "tiny", "--seed", "9" * 5000], 2, "from 0 to 2**63 - 1"),
        (["new", "m", "--preset", "tiny", "--set", 'initializer_range="x"'], 2, "initializer_range is 'x'"),
        (["new", "m", "--preset", "tiny", "--set", "initializer_range=-1"], 2, "initializer_range is -1"),
        (["new", "m", "--preset", "tiny", "--set", "initializer_range=NaN"], 2, "initializer_range is nan"),
        (["new", "m", "--preset", "tiny", "--set", "vocab_size=99999999999"], 2, "is the most that can be"),
        (["new", "m", "--preset", "tiny", "--set", "vocab_size=9" + "9" * 40], 2, "is the most that can be"),
        (HUGE, 2, "one tensor alone needs 8192.0 TB. Make it smaller."),
        (["new", "../m", "--preset", "tiny"], 2, "cannot name a model"),
        (["new", "m", "--preset", "tiny", "--tokenizer", "absent"], 3, "absent is not a folder"),
        (["import", "absent"], 4, "no folder absent"),
        (["inspect", "absent"], 4, "no model 'absent'"),
        (["exprot"], 2, "Did you mean `rondo model export`?"),
        (["export", "m"], 2, "See rondo model export --help"),
    ],
)
def test_mistakes(
    argv: list[str], code: int, message: str, own_home: Path, capsys: pytest.CaptureFixture[str]
):
    assert message in call(capsys, *argv, code=code)
    assert not own_home.exists()


def test_a_broken_model_is_refused_and_leaves_nothing(
    tmp_path: Path, own_home: Path, capsys: pytest.CaptureFixture[str]
):
    call(capsys, "new", "m", "--preset", "tiny")
    weights = own_home / "models/m/model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    assert "truncated" in call(capsys, "export", "m", str(tmp_path / "out"), code=3)
    assert not (tmp_path / "out").exists()
    assert "broken: " in call(capsys, "list")


BROKEN = {
    "deep": {"config.json": "[" * 100_000},
    "deeper": {"config.json": '{"a":' * 100_000},
    "binary": {"config.json": b"\xff\xfe\x00"},
    "empty": {"config.json": "{}"},
    "list": {"config.json": "[1]"},
    "type": {"config.json": '{"model_type": [1]}'},
    "index": {"model.safetensors.index.json": "[" * 100_000, "model.safetensors": None},
    "header": {"model.safetensors": (100_000).to_bytes(8, "little") + b"[" * 100_000},
}


def test_the_list_survives_any_broken_folder(own_home: Path, capsys: pytest.CaptureFixture[str]):
    call(capsys, "new", "fine", "--preset", "tiny")
    for name, files in BROKEN.items():
        folder = shutil.copytree(own_home / "models/fine", own_home / "models" / name)
        for file, content in files.items():
            (folder / file).unlink(missing_ok=True)
            if content is not None:
                (folder / file).write_bytes(content if isinstance(content, bytes) else content.encode())
    shown = call(capsys, "list").splitlines()
    assert [line.split()[0] for line in shown if "broken: " in line] == sorted(BROKEN)
    assert [line.split()[0] for line in shown if "broken: " not in line] == ["name", "fine"]
    rows = {row["name"]: row for row in json.loads(call(capsys, "list", "--json"))}
    assert {name for name, row in rows.items() if "error" in row} == set(BROKEN)


def test_what_is_there_is_kept(tmp_path: Path, own_home: Path, capsys: pytest.CaptureFixture[str]):
    call(capsys, "new", "m", "--preset", "tiny")
    before = (own_home / "models/m/model.safetensors").read_bytes()
    assert "already" in call(capsys, "new", "m", "--preset", "tiny", "--seed", "1", code=2)
    out = tmp_path / "out"
    out.mkdir()
    (out / "precious").write_text("x")
    assert "already exists" in call(capsys, "export", "m", str(out), code=5)
    assert [path.name for path in out.iterdir()] == ["precious"]
    assert (own_home / "models/m/model.safetensors").read_bytes() == before
    call(capsys, "new", "m", "--preset", "tiny", "--seed", "1", "--replace")
    assert (own_home / "models/m/model.safetensors").read_bytes() != before


def test_presets_parse_and_every_family_has_a_class_name():
    for preset in PRESETS.values():
        assert parse(preset).vocab_size == preset["vocab_size"]
    assert set(FAMILIES) == set(ARCHITECTURES)


def test_plain_progress_says_what_was_really_done(capsys: pytest.CaptureFixture[str]):
    with byte_progress("importing m") as report:
        report("checking", 0, 2048)
        report("checking", 1024, 2048)
        report("checking", 2048, 2048)
        report("checking", 2048, 2048)
        report("flushing to disk", 0, 0)
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "importing m: checking 2.0 KB"
    assert lines[1].startswith("importing m: checking done in ")
    assert lines[2:] == ["importing m: flushing to disk"]


def test_a_terminal_gets_bars(own_home: Path):
    ours, theirs = pty.openpty()
    argv = [sys.executable, "-m", "rondo.cli", "model", "new", "m", "--preset", "tiny"]
    shown = b""
    with subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=theirs) as process:
        os.close(theirs)
        with contextlib.suppress(OSError):  # how a terminal ends when its last writer is gone
            while part := os.read(ours, 4096):
                shown += part
        os.close(ours)
        assert process.wait(timeout=60) == 0
    assert b"making m: writing" in shown
    assert b"3.3 MB of 3.3 MB" in shown
