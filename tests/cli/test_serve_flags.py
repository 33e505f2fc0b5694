"""`rondo serve` under the flags of `vllm serve`: each sets what it says, or says what to do instead."""

from pathlib import Path
from typing import Any

import pytest

from rondo.base.errors import ConfigError
from rondo.cli.options.arguments import VerbParser
from rondo.cli.options.flags import AS_IT_IS, FLAGS, REFUSED
from rondo.cli.options.short import read_short


@pytest.fixture(autouse=True)
def own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RONDO_HOME", str(tmp_path))
    monkeypatch.delenv("RONDO_CONFIG", raising=False)


def read(line: str, **quoted: str) -> tuple[dict[str, Any], list[str]]:
    """What was set, section by section, and what is left. `{name}` in the line stands for one argument with spaces."""
    argv = [token.format(**quoted) for token in line.split()]
    command = read_short(VerbParser("rondo serve", ""), tuple(FLAGS), argv)
    assert command is not None
    set_by_flags = {path: value for path, value, source in command.config.rows() if source.kind == "flag"}
    return set_by_flags, command.rest


NGRAM = '{"method":"ngram","num_speculative_tokens":3,"prompt_lookup_min":2,"prompt_lookup_max":4}'
DRAFT = '{"model":"small","num_speculative_tokens":5}'

WORKS: dict[str, dict[str, Any]] = {
    "--host 0.0.0.0": {"server.host": "0.0.0.0"},
    "--port 9000": {"server.port": 9000},
    "--api-key a": {"server.api_key": ["a"]},
    "--api-key a --api-key=b,c": {"server.api_key": ["a", "b,c"]},
    "--api-key a b": {"server.api_key": ["a", "b"]},
    "--allow-public-without-key": {"server.allow_public_without_key": True},
    "--allowed-hosts a.example --allowed-hosts=b": {"server.allowed_hosts": ["a.example", "b"]},
    "--served-model-name x": {"server.served_model_name": ["x"]},
    "--served-model-name x y": {"server.served_model_name": ["x", "y"]},
    "--scheduling-policy priority": {"server.allow_priority": True},
    "--scheduling-policy fcfs": {"server.allow_priority": False},
    "--shutdown-timeout 5": {"server.drain_seconds": 5.0},
    "--chat-template t.jinja": {"server.chat_template": "t.jinja"},
    "--tool-call-parser hermes": {"server.tool_call_parser": "hermes"},
    "--reasoning-parser qwen3": {"server.reasoning_parser": "qwen3"},
    "--enable-auto-tool-choice": {"server.auto_tool_choice": True},
    "--dtype half": {"engine.dtype": "float16"},
    "--dtype float": {"engine.dtype": "float32"},
    "--dtype bfloat16": {"engine.dtype": "bfloat16"},
    "--seed 7": {"engine.seed": 7},
    "--max-model-len 4096": {"engine.max_model_len": 4096},
    "--max_model_len 32K": {"engine.max_model_len": 32768},
    "--max-model-len 25.6k": {"engine.max_model_len": 26214},
    "--max-model-len auto": {"engine.max_model_len": None},
    "--max-model-len -1": {"engine.max_model_len": None},
    "--max-num-seqs 8": {"engine.max_num_seqs": 8},
    "--max-num-batched-tokens 8k": {"engine.max_step_tokens": 8192},
    "--max-num-queued-reqs 3": {"engine.max_queued": 3},
    "--kv-cache-dtype fp8_e4m3": {"engine.kv_dtype": "fp8"},
    "--kv-cache-dtype int8": {"engine.kv_dtype": "int8"},
    "--kv-cache-memory-bytes 2G": {"engine.kv_cache_bytes": 2 << 30},
    "--num-gpu-blocks-override 99": {"engine.num_blocks": 99},
    "--block-size 32": {"engine.block_size": 32},
    "--enable-prefix-caching": {"engine.prefix_cache": True},
    "--no-enable-prefix-caching": {"engine.prefix_cache": False},
    "--swap-space 0.5": {"engine.swap_bytes": 1 << 29},
    "--tensor-parallel-size 2": {"engine.tensor_parallel": 2},
    "-tp 2": {"engine.tensor_parallel": 2},
    "-tp=2": {"engine.tensor_parallel": 2},
    "--device cpu": {"engine.device": "cpu"},
    "--threads 2": {"engine.threads": 2},
    "--lora-modules a=x b=/y/z": {"server.adapters": {"a": "x", "b": "/y/z"}},
    "--lora-modules a=x --lora-modules b=y": {"server.adapters": {"a": "x", "b": "y"}},
    '--lora-modules {{"name":"a","path":"x"}}': {"server.adapters": {"a": "x"}},
    "--max-loras 4": {"engine.max_loaded_adapters": 4},
    "--max-lora-rank 16": {"engine.max_adapter_rank": 16},
    "--speculative-config {ngram}": {
        "engine.speculation": "ngram",
        "engine.speculation_tokens": 3,
        "engine.ngram_min": 2,
        "engine.ngram_max": 4,
    },
    "-sc {draft}": {
        "engine.speculation": "draft",
        "engine.draft_model": "small",
        "engine.speculation_tokens": 5,
    },
    "--engine vllm --engine-mode direct": {"engine.backend": "vllm", "engine.vllm.mode": "direct"},
    "--otlp-traces-endpoint http://h:4318/v1/traces": {
        "server.otlp_traces_endpoint": "http://h:4318/v1/traces"
    },
    "--disable-uvicorn-access-log": {"server.access_log": False},
    "--uvicorn-log-level warning": {"log.level": "warning"},
}


@pytest.mark.parametrize("line", WORKS)
def test_flags_that_work(line: str) -> None:
    assert read(f"model {line}", ngram=NGRAM, draft=DRAFT) == (WORKS[line], ["model"])


def test_every_flag_is_in_the_table() -> None:
    spelled = {token.partition("=")[0].replace("_", "-") for line in WORKS for token in line.split()}
    assert set(FLAGS) - spelled == {"--speculative-config"} - spelled


def test_the_last_of_two_wins_where_one_is_meant() -> None:
    assert read("model --port 1 --port 2")[0] == {"server.port": 2}
    assert read("model --enable-prefix-caching --no-enable-prefix-caching")[0] == {
        "engine.prefix_cache": False
    }


def test_a_model_after_a_flag_that_takes_several_is_still_the_model() -> None:
    assert read("--api-key a model") == ({"server.api_key": ["a"]}, ["model"])
    assert read("--engine.seed 3 --api-key a model")[1] == ["model"]


@pytest.mark.parametrize("flag", AS_IT_IS)
def test_what_is_the_case_anyhow_may_be_said(flag: str) -> None:
    for value in AS_IT_IS[flag] or {""}:
        assert read(f"model {flag} {value}") == ({}, ["model"])
        assert read(f"{flag}={value or 'true'} model") == ({}, ["model"])
    with pytest.raises(ConfigError, match=rf"{flag} other is not for this server: .*\w"):
        read(f"model {flag}=other")


@pytest.mark.parametrize("flag", sorted(REFUSED))
def test_what_is_not_here_says_what_to_do(flag: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read(f"model {flag} something")
    assert caught.value.param == flag
    assert REFUSED[flag] in caught.value.message


@pytest.mark.parametrize("flag", ["--disable-uvicorn-access-log", "--no-enable-prefix-caching"])
def test_what_turns_something_off_stands_alone(flag: str) -> None:
    """`=true` would read as if the setting itself were true."""
    with pytest.raises(ConfigError, match=f"{flag} stands alone"):
        read(f"model {flag}=true")


def test_a_flag_that_does_not_exist_names_the_nearest() -> None:
    for line, right in (
        ("--max-model-length 9", "--max-model-len"),
        ("--prot=80", "--port"),
        ("--zzz", None),
    ):
        with pytest.raises(
            ConfigError, match=f"There is no flag {line.split()[0].partition('=')[0]}"
        ) as caught:
            read(f"model {line}")
        assert ("Did you mean" in caught.value.message) == (right is not None)
        assert right is None or f"Did you mean {right}?" in caught.value.message


def test_no_flag_is_in_two_tables() -> None:
    assert not FLAGS.keys() & (REFUSED.keys() | AS_IT_IS.keys())


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("--scheduling-policy lpm", "--scheduling-policy is fcfs or priority"),
        ("--lora-modules a", "--lora-modules takes name=folder, not 'a'"),
        ("--lora-modules a=x a=y", "two adapters called 'a'"),
        ("--speculative-config nope", "--speculative-config is not valid JSON"),
        ("--speculative-config []", "--speculative-config must be a JSON object"),
        (
            '--speculative-config {{"method":"eagle"}}',
            "'eagle' is not here; there are 'ngram' and 'draft_model'",
        ),
        ('--speculative-config {{"tokens":4}}', "has no 'tokens' here; it takes"),
        ('--speculative-config {{"num_speculative_tokens":0}}', "(--speculative-config)"),
        ("--swap-space much", "'much' is not a number of GiB"),
        ("--max-model-len " + "9" * 400 + "K", "(--max-model-len)"),
        ("--threads 100000000000", "(--threads)"),
        ("--max-model-len 0", "(--max-model-len)"),
        ("--dtype int3", "(--dtype)"),
        ("--api-key=", "server.api_key"),
    ],
)
def test_wrong_values(line: str, says: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read(f"model {line}")
    assert says in caught.value.message


def test_other_verbs_have_only_their_own() -> None:
    command = read_short(VerbParser("rondo up", ""), ("--port",), ["--port", "1", "--dtype", "half"])
    assert command is not None
    assert command.rest == ["--dtype", "half"]


def test_keys_are_for_nobodys_screen(capsys: pytest.CaptureFixture[str]) -> None:
    from rondo.cli.commands import config

    config.run(["server", '--server.api_key=["hush", "hidden"]'])
    assert "hush" not in capsys.readouterr().out


def test_help_has_them_all(capsys: pytest.CaptureFixture[str]) -> None:
    from rondo.cli.commands import serve

    assert serve.run(["--help=all"]) == 0
    shown = capsys.readouterr().out
    assert all(f"  {flag} " in shown or f"  {flag}\n" in shown for flag in FLAGS)
