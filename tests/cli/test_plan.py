"""`rondo plan`: a table for people, an object for programs, an error that names the field."""

import json

import pytest

from rondo.cli.main import main
from support.tiny import tiny_config

SIZES = ["--hidden-size", "32", "--heads", "4", "--intermediate-size", "48", "--vocab-size", "300"]


def call(capsys, *argv, code=0):
    assert main(["plan", *argv]) == code
    captured = capsys.readouterr()
    return captured.err if code > 1 else captured.out


def test_a_table_with_reasons(capsys):
    said = call(capsys, "llama-3-70b", "--gpus", "512")
    for words in (
        "70.55B parameters",
        "512 x h100",
        "classic rules",
        "MFU, causal MFU",
        "- tp ",
        "tokens/s per GPU",
    ):
        assert words in said


def test_an_object(capsys):
    said = json.loads(call(capsys, "llama-3-8b", "--json", "--seq", "4096", "--tokens-per-step", "1M"))
    chosen = said["plan"]
    assert said["fits"]
    assert chosen["layout"]["dp"] * chosen["layout"]["tp"] == 8
    assert chosen["memory_bytes"]["total"] < chosen["memory_bytes"]["available"]
    assert chosen["step_seconds"] == pytest.approx(sum(chosen["seconds"].values()))
    assert chosen["tokens_per_step"] == 2**20
    assert said["classic"]["plan"]["layout"]["tp"] == 8
    assert set(chosen["traffic_bytes"]) == {"data", "tensor", "pipeline", "context", "expert"}


def test_classic(capsys):
    said = json.loads(call(capsys, "llama-3-8b", "--json", "--profile", "classic"))
    assert said["plan"] == said["classic"]["plan"]
    assert "matrix: 7-30B" in call(capsys, "llama-3-8b", "--profile", "classic")


def test_a_config_a_folder_and_sizes(capsys, tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(tiny_config()))
    counts = [
        json.loads(call(capsys, str(given), "--json"))["plan"]["parameters"]
        for given in (tmp_path, tmp_path / "config.json")
    ]
    assert counts[0] == counts[1]
    sizes = [*SIZES, "--layers", "2", "--kv-heads", "2", "--head-dim", "8"]
    untied = json.loads(call(capsys, *sizes, "--json"))["plan"]["parameters"]
    assert untied == counts[0] + 300 * 32


def test_serving(capsys):
    said = json.loads(call(capsys, "llama-3-8b", "--serve", "--rate", "20", "--json"))
    assert said["plan"]["replicas"] >= 1
    assert said["plan"]["requests_per_second"] > 20
    assert "rondo serve MODEL" in call(capsys, "llama-3-8b", "--serve", "--rate", "20")


def test_what_does_not_fit_is_the_exit_code(capsys):
    said = call(capsys, "llama-3-405b", "--gpus", "1", "--gpu", "l4", code=1)
    assert "no plan fits" in said
    assert "do not fit" in call(capsys, "llama-3-405b", "--serve", "--gpus", "1", "--gpu", "l4", code=1)


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["lama-3-8b"], "Did you mean llama-3-8b?"),
        ([], "Say which model"),
        (["--layers", "3"], "'hidden_size'"),
        (["llama-3-8b", "--layers", "3"], "--layers"),
        ([*SIZES, "--layers", "999999999"], "layers"),
        (["llama-3-8b", "--gpu", "h101"], "Unknown gpu 'h101'. Did you mean h100?"),
        (["llama-3-8b", "--gpu", "mine", "--memory", "48"], "--peak, --bandwidth, --link"),
        (["llama-3-8b", "--tp", "3"], "tp: 3"),
        (["llama-3-8b", "--tp", "8", "--pp", "2", "--cp", "1"], "gpus"),
        (["llama-3-8b", "--ep", "2"], "ep: llama-3-8b has no experts"),
        (["llama-3-8b", "--seq", "1000"], "--tokens-per-step"),
        (["llama-3-8b", "--gpu", "a100", "--precision", "fp8"], "a100 has no fp8"),
        (["llama-3-8b", "--gpus", "0"], "'0' is not a whole number above 0"),
        (["llama-3-8b", "--serve", "--shared", "2"], "shared"),
        (["llama-3-8b", "--serve", "--tp", "3"], "tp: 3"),
        (["llama-3-8b", "--serve", "--dry-run"], "--dry-run"),
        (["llama-3-8b", "--serve", "--write", "plan.toml"], "--write"),
        (["gpt-3-175b", "--serve"], "gpt-3-175b has feed-forward layers of two matrices"),
        (["llama-3-8b", "--precision", "fp4"], "invalid choice: 'fp4'"),
        (["llama-3-8b", "--optimizer", "adamw-8bit"], "invalid choice: 'adamw-8bit'"),
        (["llama-3-8b", "--loss", "fused"], "invalid choice: 'fused'"),
    ],
)
def test_errors_name_the_field(capsys, argv, words):
    assert words in call(capsys, *argv, code=2)


def test_a_dry_run_beside_the_plan(capsys, tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(tiny_config()))
    argv = [str(tmp_path), "--gpus", "8", "--tp", "2", "--seq", "64", "--tokens-per-step", "1K"]
    assert "dry run: 8 ranks of 1 kinds" in call(capsys, *argv, "--dry-run")
    (kind,) = json.loads(call(capsys, *argv, "--dry-run", "--json"))["dry_run"]
    assert kind["ranks"] == 8
