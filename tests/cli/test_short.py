import contextlib
from pathlib import Path

import pytest

from rondo.base.errors import ConfigError
from rondo.base.settings.config import SettingSource
from rondo.cli.options.arguments import VerbParser
from rondo.cli.options.flags import FLAGS
from rondo.cli.options.short import read_short
from rondo.cli.service import up


@pytest.fixture(autouse=True)
def own_home(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("RONDO_HOME", str(tmp_path))
    monkeypatch.delenv("RONDO_CONFIG", raising=False)
    return tmp_path


def read(*argv: str):
    command = read_short(VerbParser("rondo test", ""), tuple(FLAGS), list(argv))
    assert command is not None
    return command


def test_short_flags_are_settings_whose_source_is_the_flag(tmp_path):
    (tmp_path / "config.toml").write_text("[server]\nport = 1\n[engine]\nseed = 7\n")
    command = read("m", "--port", "2", "--max-num-batched-tokens=512", "--api-key", "secret")
    config = command.config
    assert command.rest == ["m"]
    assert (config.tree.server.port, config.tree.engine.max_step_tokens, config.tree.engine.seed) == (
        2,
        512,
        7,
    )
    assert config.sources["server.port"] == SettingSource("flag", "--port")
    assert config.sources["engine.max_step_tokens"] == SettingSource("flag", "--max-num-batched-tokens")
    assert config.sources["engine.seed"].kind == "file"
    assert config.sources["server.host"].kind == "default"


def test_the_later_of_two_spellings_wins_and_is_named():
    command = read("--port", "1", "--server.port=2")
    assert command.config.tree.server.port == 2
    assert command.config.sources["server.port"] == SettingSource("flag", "--server.port")
    command = read("--server.port=2", "--port", "1")
    assert command.config.tree.server.port == 1
    assert command.config.sources["server.port"] == SettingSource("flag", "--port")


def test_a_switch_takes_no_value(tmp_path):
    (tmp_path / "config.toml").write_text("[server]\nauto_tool_choice = false\n")
    command = read(
        "--enable-auto-tool-choice", "m", "--tool-call-parser", "hermes", "--reasoning-parser=qwen3"
    )
    server = command.config.tree.server
    assert command.rest == ["m"]
    assert (server.auto_tool_choice, server.tool_call_parser, server.reasoning_parser) == (
        True,
        "hermes",
        "qwen3",
    )
    assert read("--enable-auto-tool-choice=false").config.tree.server.auto_tool_choice is False


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        (["--max-num-seqs", "0"], "(--max-num-seqs)"),
        (["--port=abc"], "server.port = 'abc' (--port)"),
        (["--port"], "--port needs a value"),
        (["--port", "--host"], "--port needs a value"),
        (["--port", "1", "--server.port=abc"], "(--server.port)"),
    ],
)
def test_errors_name_the_flag_that_was_written(argv, says):
    with pytest.raises(ConfigError) as caught:
        read(*argv)
    assert says in caught.value.message


def test_all_after_two_dashes_and_the_name_of_a_config_file_are_left_alone(tmp_path):
    (tmp_path / "--port").write_text("[server]\nport = 5\n")
    command = read("--config", str(tmp_path / "--port"), "--", "--port", "2")
    assert command.rest == ["--", "--port", "2"]
    assert command.config.tree.server.port == 5


@pytest.mark.parametrize("events", [0, 3])
def test_up_shows_the_demos_view_while_a_model_is_made(monkeypatch, events):
    seen: list[object] = []
    served: list[object] = []

    @contextlib.contextmanager
    def view():
        seen.append("open")
        yield seen.append
        seen.append("closed")

    def ensure(progress):
        for event in range(events):
            progress(event)
        return Path("demo")

    def run(config, *others):
        served.append(([pool.model for pool in config.pools], list(seen)))
        return 0

    monkeypatch.setattr("rondo.cli.view.demo_view.demo_view", view)
    monkeypatch.setattr("rondo.demo.pipeline.ensure_demo_model", ensure)
    monkeypatch.setattr(up, "_run", run)
    assert up.run(["--port", "0"]) == 0
    shown = ["open", 0, 1, 2, "closed"] if events else []
    assert served == [(["demo"], shown)]
