"""`rondo plan --lora|--qlora`: does the training of an adapter fit one device?"""

import json
import shlex
from typing import Any

import pytest

from rondo.cli.main import main


def call(capsys: Any, *argv: str, code: int = 0) -> str:
    assert main(["plan", *argv]) == code
    captured = capsys.readouterr()
    return captured.err if code > 1 else captured.out


def test_a_table_of_at_most_80_columns(capsys: Any):
    said = call(capsys, "qwen3-8b", "--qlora", "--gpu", "rtx-4090")
    assert max(map(len, said.splitlines())) <= 80
    for words in (
        "QLoRA of rank 16 on rtx-4090: fits",
        "weights",
        "adapters",
        "optimizer",
        "activations",
        "logits",
    ):
        assert words in said
    command = shlex.split(said[said.index("  rondo train") :].replace("\\\n", " "))
    assert command[:3] == ["rondo", "train", "sft"]
    assert "--train.adapter.quantize_base=nf4" in command


def test_what_does_not_fit_has_exit_code_1(capsys: Any):
    said = call(capsys, "qwen3-32b", "--lora", "8", "--gpu", "l4", code=1)
    assert max(map(len, said.splitlines())) <= 80
    assert "LoRA of rank 8 on l4: does not fit" in said
    assert "72.7" in said


def test_an_object(capsys: Any):
    told = json.loads(call(capsys, "llama-3-8b", "--lora", "--gpu", "h100", "--json"))
    assert told["fits"]
    assert told["trained_parameters"] == 41_943_040
    parts = told["memory_bytes"]
    assert sum(value for name, value in parts.items() if name != "total") == pytest.approx(parts["total"])
    assert parts["total"] <= told["room_bytes"]
    assert told["largest_microbatch"]["none"] < told["largest_microbatch"]["full"]
    assert told["step_seconds"] > 0


def test_the_device_of_this_machine(capsys: Any):
    told = json.loads(call(capsys, "smollm2-135m", "--qlora", "4", "--gpu", "here", "--seq", "512", "--json"))
    assert told["device_bytes"] > 0
    assert told["settings"]["length"] == 512


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--lora", "--gpus", "8"], "plan one device"),
        (["--lora", "--serve"], "plan one device"),
        (["--lora", "--qlora"], "not allowed with argument"),
        (["--qlora", "0"], "'0' is not a whole number above 0"),
        (["--qlora", "--gpu", "h1000"], "Unknown gpu 'h1000'. Did you mean h100?"),
    ],
)
def test_mistakes(flags: list[str], said: str, capsys: Any):
    assert said in call(capsys, "qwen3-8b", *flags, code=2)
