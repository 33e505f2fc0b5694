"""`rondo bench` against our own server, and without one."""

import argparse
import json
import os
from pathlib import Path
from typing import Any

import httpx
import pytest

from rondo.base.errors import ConfigError
from rondo.cli.commands import bench
from rondo.cli.subcommands import bench_types
from server.running import Running

SMALL = "--num-prompts 12 --random-input-len 20 --random-output-len 8 --ignore-eos --seed 3"


def counted(running: Running, name: str) -> float:
    text = httpx.get(running.url + "/metrics").text
    return sum(float(line.split()[-1]) for line in text.splitlines() if line.startswith(f"rondo:{name}{{"))


def serve(running: Running, line: str) -> int:
    return bench.run(["serve", "--base-url", running.url, *line.split()])


@pytest.mark.parametrize("endpoint", ["completions", "chat"])
def test_the_clients_counts_are_the_servers(
    running: Running, endpoint: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    names = ("prompt_tokens_total", "generation_tokens_total", "e2e_request_latency_seconds_count")
    before = [counted(running, name) for name in names]
    file = tmp_path / "result.json"
    code = serve(
        running,
        f"{SMALL} --endpoint {endpoint} --max-concurrency 4 --save-result {file} --save-detailed "
        "--goodput ttft:60000 e2el:0.001 --metric-percentiles 50,99.9",
    )
    assert code == 0
    result = json.loads(file.read_text())
    grown = [counted(running, name) - was for name, was in zip(names, before, strict=True)]
    assert [result["total_input_tokens"], result["total_output_tokens"], result["completed"]] == grown
    assert (result["completed"], result["failed"], result["total_output_tokens"]) == (12, 0, 96)
    assert result["model_id"] == "tiny"
    assert (result["request_goodput"], result["max_concurrent_requests"] <= 12) == (0, True)
    if endpoint == "completions":
        assert result["input_lens"] == [20] * 12
    for ttft, gaps, length in zip(result["ttfts"], result["itls"], result["output_lens"], strict=True):
        assert ttft > 0
        assert len(gaps) < length
    shown = capsys.readouterr().out
    assert "============ Serving Benchmark Result ============" in shown
    for label in (
        *(
            "Successful requests:",
            "Maximum request concurrency:",
            "Total generated tokens:",
            "Request goodput",
        ),
        *(
            "Output token throughput (tok/s):",
            "Peak concurrent requests:",
            "Median TTFT (ms):",
            "P99.9 ITL (ms):",
        ),
        *("Mean TPOT (ms):", "P50 E2EL (ms):"),
    ):
        assert label in shown


def test_a_sweep_is_a_table(running: Running, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "sweep.json"
    before = counted(running, "prompt_tokens_cached_total")
    line = f"{SMALL} --random-input-len 40 --seed 70 --sweep 40,inf --save-result {file} --num-warmups 1"
    assert serve(running, line) == 0
    assert [each["request_rate"] for each in json.loads(file.read_text())] == [40, "inf"]
    assert counted(running, "prompt_tokens_cached_total") == before, "each rate asks what nobody asked before"
    *_, head, first, second = capsys.readouterr().out.splitlines()
    assert head.split()[:2] == ["rate", "req/s"]
    assert (first.split()[0], second.split()[0]) == ("40", "inf")


def test_a_ramp_and_a_text(running: Running, tmp_path: Path) -> None:
    file, text = tmp_path / "result.json", tmp_path / "poem.txt"
    text.write_text("a line of it\nand another\n")
    line = f"--dataset sonnet --dataset-path {text} --input-len 20 --sonnet-prefix-len 8 --output-len 4 --num-prompts 6"
    ramp = (
        "--ramp-up-strategy linear --ramp-up-start-rps 20 --ramp-up-end-rps 80 --ready-check-timeout-sec 30"
    )
    assert serve(running, f"{line} {ramp} --ignore-eos --save-result {file}") == 0
    result = json.loads(file.read_text())
    assert (result["completed"], result["total_output_tokens"]) == (6, 24)
    assert result["ramp_up"] == {"strategy": "linear", "start_rps": 20, "end_rps": 80}


def test_all_failed_is_no_success(running: Running, capsys: pytest.CaptureFixture[str]) -> None:
    assert serve(running, "--model nothing --num-prompts 2") == 1
    assert "2 failed: status 404: " in capsys.readouterr().err


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("--request-rate 0", "'0' is not a number above 0"),
        ("--goodput itl:5", "'itl:5' is not NAME:MILLISECONDS"),
        ("--percentile-metrics ttfx", "'ttfx' is not one of"),
        ("--metric-percentiles 101", "'101' is not a number between 0 and 100"),
        ("--extra-body [", "--extra-body is not valid JSON"),
        ("--random-range-ratio 1", "'1' is not a number from 0 to below 1"),
        ("--num-prompts 0", "'0' is not a whole number of at least 1"),
        ("--num-prompts many", "'many' is not a whole number of at least 1"),
        ("--num-warmups -5", "'-5' is not a whole number of at least 0"),
        ("--random-prefix-len -5", "'-5' is not a whole number of at least 0"),
        ("--save-result /dev/null/x.json", "no file can be written at /dev/null/x.json"),
        ("--save-result /", "no file can be written at /"),
        ("--ramp-up-strategy linear", "A ramp needs"),
        (
            "--ramp-up-strategy linear --ramp-up-start-rps 1 --ramp-up-end-rps 2 --request-rate 3",
            "A ramp sets the rate",
        ),
        ("--dataset prefix_repetition --input-len 9", "--input-len does not apply to the dataset"),
    ],
)
def test_wrong_options(running: Running, line: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says.replace("[", r"\[")):
        serve(running, line)


def test_offline_throughput(model_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "result.json"
    line = f"throughput {model_folder} --num-prompts 6 --input-len 10 --output-len 4 --n 2 --max-num-seqs 4 --threads 1"
    assert bench.run([*line.split(), "--output-json", str(file)]) == 0
    throughput, prompt, output = capsys.readouterr().out.splitlines()
    assert throughput.startswith("Throughput: ")
    assert throughput.endswith(" output tokens/s")
    assert (prompt.split()[-1], output.split()[-1]) == ("60", "48")
    result: dict[str, Any] = json.loads(file.read_text())
    assert result["tokens_per_second"] == pytest.approx(108 / result["elapsed_time"])


def test_offline_latency(model_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    line = "--batch-size 2 --input-len 5 --output-len 3 --num-iters-warmup 1 --num-iters 3 --threads 1"
    assert bench.run(["latency", str(model_folder), *line.split()]) == 0
    average, *percentiles = capsys.readouterr().out.splitlines()
    assert average.startswith("Avg latency: ")
    assert [line.partition("%")[0] for line in percentiles] == ["10", "25", "50", "75", "90", "99"]


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("latency x --num-iters-warmup -40", "'-40' is not a whole number of at least 0"),
        ("throughput x --num-prompts 0", "'0' is not a whole number of at least 1"),
        ("throughput x --output-json /", "no file can be written at /"),
    ],
)
def test_wrong_options_without_a_server(line: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        bench.run(line.split())


def test_where_nothing_can_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Asked of `os`, since tests may run as who may do everything."""
    taken, free = tmp_path / "taken.json", tmp_path / "new" / "free.json"
    taken.touch()
    assert bench_types.output(str(taken)) == taken
    assert bench_types.output(str(free)) == free
    for closed, path in ((taken, taken), (tmp_path, free)):
        monkeypatch.setattr(os, "access", lambda which, mode, closed=closed: Path(which) != closed)
        with pytest.raises(argparse.ArgumentTypeError, match="no file can be written"):
            bench_types.output(str(path))


def test_a_folder_that_may_not_be_looked_into(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hidden, stat = tmp_path / "hidden", os.stat

    def refuse(path, *args, **kwargs):
        if str(path).startswith(f"{hidden}/"):
            raise PermissionError(13, "Permission denied", str(path))
        return stat(path, *args, **kwargs)

    hidden.mkdir()
    monkeypatch.setattr(os, "stat", refuse)
    monkeypatch.setattr(os, "access", lambda which, mode: Path(which) != hidden)
    with pytest.raises(argparse.ArgumentTypeError, match="no file can be written"):
        bench_types.output(str(hidden / "a" / "b.json"))


def test_help_of_each(capsys: pytest.CaptureFixture[str]) -> None:
    assert bench.run([]) == 0
    assert "rondo bench VERB" in capsys.readouterr().out
    assert bench.run(["throughput", "--help"]) == 0
    assert "--kv-cache-dtype" in capsys.readouterr().out
