"""Our settings as vLLM's, and those that vLLM does not have refused by name."""

import os
from importlib.metadata import distributions
from pathlib import Path

import pytest

from rondo.base.errors import ConfigError
from rondo.cli.options.arguments import VerbParser
from rondo.cli.options.flags import FLAGS
from rondo.cli.options.short import read_short
from rondo.engine.config import EngineConfig, VllmConfig
from rondo.engine.entrypoints.llm import LLM
from rondo.engine.vllm.folder import RunFolder
from rondo.engine.vllm.options import check, environment, flags, options
from support.tiny import tiny_model

FOLDER = Path("/models/tiny")


def said(on_gpu=False, kv_bytes=None, **settings):
    config = EngineConfig(**settings)
    check(config)
    return flags(options(config, FOLDER, 512, on_gpu, kv_bytes))


def after(arguments, flag):
    return arguments[arguments.index(flag) + 1]


def test_each_setting_has_vllms_name():
    arguments = said(
        max_num_seqs=8,
        max_step_tokens=4,
        dtype="float32",
        kv_dtype="fp8",
        block_size=32,
        num_blocks=100,
        tensor_parallel=2,
        seed=5,
        prefix_cache=False,
        kv_bytes=1000,
    )
    wanted = {
        "--tokenizer": "/models/tiny",
        "--max-model-len": "512",
        "--max-num-seqs": "8",
        "--seed": "5",
        "--max-num-batched-tokens": "8",
        "--dtype": "float32",
        "--kv-cache-dtype": "fp8",
        "--block-size": "32",
        "--num-gpu-blocks-override": "100",
        "--tensor-parallel-size": "2",
        "--kv-cache-memory-bytes": "1000",
        "--weight-transfer-config": '{"backend": "rondo"}',
    }
    assert {flag: after(arguments, flag) for flag in wanted} == wanted
    assert {"--no-enable-prefix-caching", "--no-enable-sleep-mode"} <= set(arguments)
    assert "--enable-sleep-mode" in said(on_gpu=True)
    assert not {"--block-size", "--num-gpu-blocks-override", "--enable-lora"} & set(said())


def test_adapters_are_asked_for():
    arguments = said(max_adapter_rank=20, max_loaded_adapters=3, vllm=VllmConfig(adapters=True))
    assert "--enable-lora" in arguments
    assert [after(arguments, flag) for flag in ("--max-lora-rank", "--max-loras", "--max-cpu-loras")] == [
        "32",
        "3",
        "3",
    ]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *[("batching", "static"), ("swap_bytes", 1), ("swap_bytes_per_second", 1.0)],
        *[
            ("recompute_tokens_per_second", 1.0),
            ("speculation", "ngram"),
            ("draft_model", "x"),
            ("pooling", "mean"),
        ],
        *[("adapters_dir", "x"), ("kv_dtype", "int8"), ("max_adapter_rank", 1000)],
        *[("device", "cuda:1"), ("device", "mps")],
    ],
)
def test_what_vllm_does_not_have_is_refused_by_name(name, value):
    with pytest.raises(ConfigError, match=name) as refused:
        check(EngineConfig(**{name: value}))
    assert refused.value.param == name


@pytest.mark.parametrize(
    ("config", "param"),
    [
        (EngineConfig(backend="vllm"), "backend"),
        (EngineConfig(vllm=VllmConfig(python="/usr/bin/python3")), "vllm.python"),
    ],
)
def test_our_own_engine_takes_no_settings_of_vllms(config, param):
    with pytest.raises(ConfigError) as refused:
        LLM(tiny_model(), config=config)
    assert refused.value.param == param


def test_the_short_flags():
    command = read_short(
        VerbParser("x", "y"),
        ("--engine", "--engine-mode"),
        ["--engine", "vllm", "--engine-mode=direct", '--engine.vllm.args=["--a", "b"]'],
    )
    engine = command.config.tree.engine
    assert (engine.backend, engine.vllm.mode, engine.vllm.args) == ("vllm", "direct", ("--a", "b"))


@pytest.mark.parametrize("flag", ["--enforce-eager", "--enable-lora"])
def test_flags_that_only_our_own_engine_can_take_for_granted(flag):
    with pytest.raises(ConfigError, match=r"pass it with --engine\.vllm") as refused:
        read_short(VerbParser("x", "y"), tuple(FLAGS), ["--engine=vllm", flag])
    assert refused.value.param == flag
    assert read_short(VerbParser("x", "y"), tuple(FLAGS), [flag]) is not None


def test_vectors_are_asked_for():
    arguments = said(pooling="mean", max_step_tokens=64, vllm=VllmConfig(runner="pooling"))
    wanted = {
        "--runner": "pooling",
        "--convert": "embed",
        "--pooler-config": '{"pooling_type": "MEAN"}',
        "--max-num-batched-tokens": "512",
    }
    assert {flag: after(arguments, flag) for flag in wanted} == wanted
    assert "--runner" not in said()


def test_vllms_process_has_our_plugins_and_not_our_code(monkeypatch, tmp_path):
    monkeypatch.setenv("PYTHONPATH", "/our/code")
    monkeypatch.setenv("HF_HUB_OFFLINE", "0")
    monkeypatch.setenv("VLLM_PLUGINS", "theirs")
    monkeypatch.setenv("RONDO_HOME", str(tmp_path))
    folder = RunFolder()
    given = environment(EngineConfig(threads=3), folder)
    wanted = {
        "PYTHONPATH": str(folder.plugins),
        "HF_HUB_OFFLINE": "0",
        "OMP_NUM_THREADS": "3",
        "VLLM_SERVER_DEV_MODE": "1",
        "VLLM_PLUGINS": "theirs,rondo_folder,rondo_parent,rondo_waiting",
        "RONDO_VLLM_PARENT": str(os.getpid()),
    }
    assert {name: given[name] for name in wanted} == wanted
    [package] = distributions(path=[str(folder.plugins)])
    assert {entry.name for entry in package.entry_points} == {"rondo_folder", "rondo_parent", "rondo_waiting"}
    for entry in package.entry_points:
        assert entry.group == "vllm.general_plugins"
        assert f"def {entry.attr}(" in (folder.plugins / f"{entry.module}.py").read_text()
    folder.remove()
