"""The examples as their readers run them, on a model small enough for a test."""

import ast
import re
import runpy
import sys
from pathlib import Path

import pytest
import torch

from rondo import models
from rondo.cli.main import main as rondo
from rondo.models.store import create_model
from server.running import start
from support.home import own_home
from support.tiny import tiny_model, tiny_tokenizer

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("RONDO_HOME", str(own_home(tmp_path / "home")))
    monkeypatch.delenv("RONDO_CONFIG", raising=False)
    return tmp_path / "home"


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("example") / "tiny"
    models.save(tiny_model(), path)
    tiny_tokenizer().save(path)
    return path


@pytest.fixture
def run(monkeypatch, capsys):
    def run(name: str, *arguments: object) -> str:
        monkeypatch.setattr(sys, "argv", [name, *map(str, arguments)])
        runpy.run_path(str(EXAMPLES / name), run_name="__main__")
        return capsys.readouterr().out

    return run


def test_every_example_has_a_test() -> None:
    here = Path(__file__).read_text()
    assert {file.name for file in EXAMPLES.iterdir() if file.is_file() and file.name not in here} == set()


def test_generate(run, folder) -> None:
    arguments = (folder, "reverse", "add", "--samples", 2, "--max-tokens", 4)
    out = run("generate.py", *arguments)
    assert len(re.findall(r"log-probability -\d", out)) == 4
    assert run("generate.py", *arguments) == out
    assert run("generate.py", *arguments, "--raw") != out


def test_chat(run, folder, monkeypatch) -> None:
    served = start(folder)
    url = next(served).url
    monkeypatch.setenv("RONDO_BASE_URL", url)
    once = run("chat.py", "reverse")
    asked = iter(["reverse", "reverse", ""])
    monkeypatch.setattr("builtins.input", lambda prompt: next(asked))
    assert run("chat.py", "--forget") == once + once
    next(served, None)
    with pytest.raises(SystemExit, match="Is the server running"):
        run("chat.py", "reverse", "--url", url)


def test_custom_task(run, folder, home) -> None:
    out = run(
        "custom_task.py",
        "--model",
        folder,
        "--sft-steps=1",
        "--rl-steps=1",
        "--prompts=2",
        "--eval-prompts=4",
    )
    assert "step 1: reward" in out
    assert models.load(home / "models" / "alphabetical").config.vocab_size == 300


def test_custom_task_grades() -> None:
    task = runpy.run_path(str(EXAMPLES / "custom_task.py"))["TASK"]
    for problem in task.prompts(0, 20):
        assert task.total(task.grade(problem.facts, task.solve(problem.facts))) == pytest.approx(1)
        assert task.total(task.grade(problem.facts, "")) == 0


def test_lora_from_peft(run, folder, home, tmp_path) -> None:
    peft, transformers = pytest.importorskip("peft"), pytest.importorskip("transformers")
    base = transformers.AutoModelForCausalLM.from_pretrained(folder)
    config = peft.LoraConfig(r=4, target_modules=["q_proj", "v_proj"], init_lora_weights=False)
    torch.manual_seed(0)
    peft.get_peft_model(base, config).save_pretrained(tmp_path / "adapter")
    out = run("lora_from_peft.py", folder, tmp_path / "adapter", "--prompt", "add", "--keep-as", "merged")
    before, after = (re.search(f"{name}: +(.*)", out)[1] for name in ("base", "adapter"))
    assert before != after
    assert "rank 4, over 4 linear modules" in out
    assert (
        run("generate.py", "merged", "add", "--raw", "--temperature=0", "--max-tokens=20").count(after) == 2
    )


def test_pretrain_config(folder, tmp_path, capsys) -> None:
    data = tmp_path / "text.jsonl"
    data.write_text('{"text": "the user asks and the assistant answers"}\n' * 8)
    small = ["--train.steps=2", "--train.tokens_per_step=64", "--train.save_every=1"]
    config = ["--config", str(EXAMPLES / "pretrain.toml")]
    assert rondo(["train", "pretrain", *config, "--model", str(folder), "--data", str(data), *small]) == 0
    assert models.load(Path(capsys.readouterr().out.strip())).config.vocab_size == 300


def test_grpo_config(folder, capsys) -> None:
    create_model("begin", tiny_model(), tokenizer=folder)
    small = ["--rl.steps=1", "--rl.prompts_per_step=2", "--rl.samples_per_prompt=2", "--rl.max_tokens=4"]
    assert rondo(["rl", "--config", str(EXAMPLES / "grpo.toml"), "--model", "begin", *small]) == 0
    assert models.load(Path(capsys.readouterr().out.strip())).config.vocab_size == 300


def test_own_task(folder) -> None:
    create_model("begin", tiny_model(), tokenizer=folder)
    small = ["--rl.steps=1", "--rl.prompts_per_step=2", "--rl.samples_per_prompt=2", "--rl.eval_prompts=4"]
    assert rondo(["rl", "--model", "begin", "--task", f"{EXAMPLES / 'own_task.py'}:DOUBLE", *small]) == 0


def test_questions_from_a_file(folder) -> None:
    create_model("begin", tiny_model(), tokenizer=folder)
    assert "questions.jsonl" in (EXAMPLES / "questions.toml").read_text()
    small = ["--rl.steps=1", "--rl.prompts_per_step=2", "--rl.samples_per_prompt=2", "--rl.max_tokens=4"]
    config = ["--config", str(EXAMPLES / "questions.toml"), "--rl.task", str(EXAMPLES / "questions.jsonl")]
    assert rondo(["rl", "--model", "begin", *config, *small]) == 0


def test_calculator(run, home) -> None:
    small = ["--hidden=64", "--conversations=100", "--sft-steps=2", "--rl-steps=1", "--prompts=2"]
    assert "step 1: reward" in run("calculator.py", *small, "--eval-prompts=4")
    once = ["--rl.steps=1", "--rl.prompts_per_step=2", "--rl.samples_per_prompt=2", "--rl.eval_prompts=4"]
    assert rondo(["rl", "--model", "calculating", "--task", "calculator", *once]) == 0


def test_environment(run, folder, home) -> None:
    out = run(
        "environment.py",
        "--model",
        folder,
        "--sft-steps=1",
        "--rl-steps=1",
        "--prompts=2",
        "--eval-prompts=4",
    )
    assert "step 1: reward" in out
    assert models.load(home / "models" / "guesser").config.vocab_size == 300
    source = (EXAMPLES / "environment.py").read_text()
    (own,) = (node for node in ast.parse(source).body if isinstance(node, ast.ClassDef))
    lines = source.splitlines()[own.lineno - 1 : own.end_lineno]
    assert sum(map(bool, lines)) == 9, "an environment takes ten lines, with the one that names it"
