import json
import subprocess
import sys
from pathlib import Path

import pytest

from rondo import models
from rondo.base.settings.config_keys import keys_of
from rondo.cli.main import main
from rondo.cli.options.tree import RondoConfig, read_command_line
from rondo.models.files.gguf.export import export_gguf
from rondo.models.store import import_model
from rondo.train.recipes import defaults
from support.tiny import tiny_model, tiny_tokenizer


@pytest.fixture(autouse=True)
def own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("RONDO_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("RONDO_CONFIG", raising=False)
    (tmp_path / "home").mkdir()
    return tmp_path / "home"


def shown(argv: list[str], capsys: pytest.CaptureFixture[str]) -> dict[str, dict[str, object]]:
    assert main(["config", "--json", *argv]) == 0
    return json.loads(capsys.readouterr().out)


def test_every_key_is_described_and_has_a_default():
    assert not [path for path, key in keys_of(RondoConfig).items() if not key.description]
    assert RondoConfig() == RondoConfig()


def test_the_tree_is_free_of_torch_and_http():
    code = "import sys, rondo.cli.options.tree\nprint([name for name in ('torch', 'starlette') if name in sys.modules])"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout == "[]\n"


def test_json_shows_values_and_sources(
    own_home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    (own_home / "config.toml").write_text("[train]\nlr = 0.5\n")
    monkeypatch.setenv("RONDO_LOG_LEVEL", "error")
    rows = shown(["--engine.block-size", "32"], capsys)
    assert rows["train.lr"] == {"value": 0.5, "source": f"{own_home}/config.toml:2"}
    assert rows["log.level"] == {"value": "error", "source": "RONDO_LOG_LEVEL"}
    assert rows["engine.block_size"] == {"value": 32, "source": "--engine.block-size"}
    assert rows["log.format"] == {"value": "auto", "source": "default"}

    other = tmp_path / "other.toml"
    other.write_text("[train]\nlr = 0.25\n")
    assert shown(["--config", str(other)], capsys)["train.lr"]["value"] == 0.25
    monkeypatch.setenv("RONDO_CONFIG", str(other))
    assert shown(["train.lr"], capsys) == {"train.lr": {"value": 0.25, "source": f"{other}:2"}}
    assert shown([f"--config={own_home}/config.toml"], capsys)["train.lr"]["value"] == 0.5


@pytest.mark.parametrize("suffix", ["k", "K"])
def test_counts_have_suffixes(suffix: str, own_home: Path, capsys: pytest.CaptureFixture[str]):
    (own_home / "config.toml").write_text(f'[train]\ntokens_per_step = "32{suffix}"\n')
    rows = shown([f"--engine.kv-cache-bytes=1.5{suffix}", "--train.model=4k"], capsys)
    assert rows["engine.kv_cache_bytes"]["value"] == 1536
    assert rows["train.tokens_per_step"]["value"] == 32768
    assert rows["train.model"]["value"] == "4k"


def test_table(capsys: pytest.CaptureFixture[str]):
    assert main(["config", "log", "--log.level=debug"]) == 0
    assert capsys.readouterr().out == 'log.format  "auto"   default\nlog.level   "debug"  --log.level\n'


def test_explain(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("COLUMNS", "80")
    assert main(["config", "--explain", "server.port", "train.decay", "--train.decay=linear"]) == 0
    out = capsys.readouterr().out
    assert out == (
        "server.port\n"
        "  port to listen on; 0 takes a free one.\n"
        "  value     8001  (default)\n"
        "  default   8001\n"
        "  allowed   whole number at least 0 and at most 65535\n"
        "  variable  RONDO_SERVER_PORT\n"
        "  flags     --server.port, --port (rondo serve)\n"
        "\n"
        "train.decay\n"
        "  learning-rate schedule after the warm-up.\n"
        "  value     linear  (--train.decay)\n"
        "  default   cosine\n"
        "  allowed   cosine, linear, constant or wsd\n"
        "  variable  RONDO_TRAIN_DECAY\n"
        "  flags     --train.decay, --decay (rondo train)\n"
    )
    row = shown(["--explain", "train.lr"], capsys)["train.lr"]
    assert row["allowed"] == "number above 0"
    assert row["description"] == "peak learning rate"


def test_every_setting_is_explained_in_80_columns(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("COLUMNS", "80")
    assert main(["config", "--explain"]) == 0
    out = capsys.readouterr().out
    keys = keys_of(RondoConfig)
    assert [line for line in out.splitlines() if line and line[0] != " "] == [
        path for path, key in keys.items() if not key.sections
    ]
    assert [line for line in out.splitlines() if len(line) > 80] == []


def test_secrets_are_not_shown(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    assert shown(["server.api_key"], capsys) == {"server.api_key": {"value": None, "source": "default"}}
    monkeypatch.setenv("RONDO_SERVER_API_KEY", "hunter2")
    row = shown(["server.api_key"], capsys)["server.api_key"]
    assert row == {"value": "********", "source": "RONDO_SERVER_API_KEY"}


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--train.lrr=1"], "Unknown config key train.lrr (the flag --train.lrr). Did you mean train.lr?"),
        (["--config", "absent.toml"], "There is no config file absent.toml."),
        (["--config"], "The flag --config needs a file"),
        (["--jsno"], "Unrecognized arguments: --jsno. Did you mean --json? See rondo config --help."),
        (["tarin"], "There is no section or key 'tarin'. Did you mean 'train' or 'train.lr'?"),
    ],
)
def test_mistakes(argv: list[str], message: str, capsys: pytest.CaptureFixture[str]):
    assert main(["config", *argv]) == 2
    captured = capsys.readouterr()
    assert message in captured.err
    assert captured.err.count("\n") == 1
    assert captured.out == ""


@pytest.mark.parametrize(
    ("argv", "where"),
    [
        (["--train.lr=1", "--train.max_length=9000"], "train (--train.max_length)"),
        (
            ["--train.seed=1", "--train.tokens_per_microbatch=10", "--train.max_length=20"],
            "train (--train.max_length, --train.tokens_per_microbatch)",
        ),
        (["--train.model=m", "--train.dtype=bfloat16", "--train.precision=float16"], "--train.precision"),
        (["--rl.steps=9", "--rl.advantage=gae", "--rl.normalise=batch"], "rl (--rl.advantage)"),
        (["--rl.steps=9", "--rl.pairs.loss=dpo", "--rl.minibatches=2"], "--rl.pairs.loss, --rl.minibatches"),
        (["--rl.evaluate.samples=2", "--rl.evaluate.k=3"], "--rl.evaluate.k"),
    ],
)
def test_a_rule_about_several_settings_names_their_flags(
    argv: list[str], where: str, capsys: pytest.CaptureFixture[str]
):
    """And not whichever flag of the section came first."""
    assert main(["config", *argv]) == 2
    said = capsys.readouterr().err
    assert where in said
    for other in ("--train.lr", "--train.seed", "--train.model", "--rl.steps"):
        assert other not in said


def test_the_verbs_own_arguments_are_left():
    line = read_command_line(["demo", "--port", "8000", "--train.lr", "0.1", "--", "--config"])
    assert line.rest == ["demo", "--port", "8000", "--", "--config"]
    assert line.config.tree.train.lr == 0.1


def test_the_planner_reads_gguf_models(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    models.save(tiny_model(hidden_size=64, intermediate_size=96, head_dim=16), tmp_path / "model")
    tiny_tokenizer().save(tmp_path / "model")
    file = export_gguf(tmp_path / "model", tmp_path / "file.gguf")
    stored = import_model(file, "stored") / file.name
    seen: list[Path] = []
    planned = defaults.planned
    monkeypatch.setattr(
        defaults,
        "planned",
        lambda kind, config, model: (seen.append(model), planned(kind, config, model))[1],
    )
    for model in (str(file), str(stored.parent), "stored"):
        shown(["train.lr", "--train.model", model], capsys)
    assert seen == [file, stored, stored]
