import io
import json
import os
import signal
from dataclasses import replace
from pathlib import Path

import pytest

from rondo import models
from rondo.base.storage.hashing import sha256_file
from rondo.cli.commands import demo as verb
from rondo.cli.main import main
from rondo.cli.view.demo_view import View, plain, sparkline
from rondo.demo import pipeline
from rondo.demo.corpus import solved, stories, sums
from rondo.demo.pipeline import PHASES, Event, run_demo
from rondo.demo.recipe import QUICK, tokenizer_for
from rondo.engine.entrypoints.llm import LLM
from rondo.jobs.job import Job
from rondo.parallel.ranks.crew import Paused
from rondo.rl.tasks.puzzles import evaluate
from rondo.rl.tasks.registry import task
from rondo.text.tokenizer import Tokenizer
from support.home import own_home
from support.tiny import tiny_tokenizer

TINY = replace(
    QUICK, hidden=64, pretrain_steps=1, sft_steps=2, sft_check_every=1, rl_steps=2, prompts_per_step=4
)


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("RONDO_HOME", str(own_home(tmp_path)))
    return tmp_path


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The hash of the weights that the demo makes in one go."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RONDO_HOME", str(own_home(tmp_path_factory.mktemp("whole"))))
        return sha256_file(Path(run_demo(seed=3, recipe=TINY, name="whole").model) / "model.safetensors")


def test_equal_seeds_make_equal_models_that_can_be_loaded_and_asked(home: Path, whole: str) -> None:
    events: list[Event] = []
    result = run_demo(seed=3, recipe=TINY, on_event=events.append)
    folder = Path(result.model)
    assert folder == home / "models" / "demo"
    assert result.steps == 2
    assert result.logprob_max_diff < 2e-5
    assert json.loads((folder / "demo.json").read_text())["task"] == "reverse"
    assert tuple(dict.fromkeys(event.phase for event in events)) == PHASES
    assert sha256_file(folder / "model.safetensors") == whole
    tokenizer = Tokenizer.load(folder)
    prompt = tokenizer.apply_chat([{"role": "user", "content": "reverse ABC"}])
    (output,) = LLM(models.load(folder), tokenizer).generate([prompt])
    assert output.outputs[0].token_ids
    again = run_demo(seed=3, recipe=TINY)
    assert sha256_file(folder / "model.safetensors") == whole
    assert (again.reward_start, again.reward_end) == (result.reward_start, result.reward_end)


@pytest.mark.parametrize(
    ("phase", "step"), [("corpus", 0), ("pretrain", 1), ("sft", 1), ("rl", 1), ("save", 0)]
)
def test_an_interrupted_demo_resumes(home: Path, phase: str, step: int, whole: str) -> None:
    sent: list[Event] = []

    def interrupt(event: Event) -> None:
        if (event.phase, event.step) == (phase, step) and not sent:
            sent.append(event)
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(Paused):
        run_demo(seed=3, recipe=TINY, on_event=interrupt, name="cut", command="rondo demo")
    assert all(job.state() in ("paused", "succeeded") for job in Job.all())
    result = run_demo(seed=3, recipe=TINY, name="cut", command="rondo demo")
    assert sha256_file(Path(result.model) / "model.safetensors") == whole
    assert result.jobs == ("cut-pretrain", "cut-sft", "cut-rl")
    assert [job.label for job in Job.all()] == ["cut-rl", "cut-sft", "cut-pretrain"]


def test_the_jobs_of_the_demo_are_ordinary(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run_demo(seed=3, recipe=TINY, command="rondo demo --seed 3")
    for command in (
        ["rl", "rollouts", "demo-rl"],
        ["rl", "alarms", "demo-rl"],
        ["job", "metrics", "demo-rl", "reward"],
        ["job", "report", "demo-sft"],
        ["job", "logs", "demo-pretrain"],
    ):
        assert main(command) == 0, command
    capsys.readouterr()
    assert main(["job", "show", "demo-rl", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert (shown["command"], shown["model"]) == ("rondo demo --seed 3", "demo-sft")
    assert set(shown["score"]) == {"reward"}
    assert main(["model", "list", "--json"]) == 0
    (row,) = [row for row in json.loads(capsys.readouterr().out) if row["name"] == "demo"]
    assert (row["parent"], row["job"]) == ("demo-sft", "demo-rl")
    other = run_demo(seed=4, recipe=TINY)
    assert other.jobs == ("demo-pretrain-2", "demo-sft-2", "demo-rl-2"), "names stay with their jobs"


def test_the_demo_model_is_made_once(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[str] = []

    def make(task: str = "reverse", **_: object) -> None:
        made.append(task)
        (home / "models" / "demo").mkdir(parents=True)
        (home / "models" / "demo" / "config.json").write_text("{}")

    monkeypatch.setattr(pipeline, "run_demo", make)
    assert pipeline.ensure_demo_model() == pipeline.ensure_demo_model() == home / "models" / "demo"
    assert made == ["reverse"]


def test_the_command_ends_with_one_json_line(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("rondo.demo.recipe.QUICK", TINY)
    assert verb.run(["--quick", "--no-serve", "--json", "--task", "add"]) == 0
    answer = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert list(answer) == [
        "task",
        "reward_start",
        "reward_end",
        "steps",
        "seconds",
        "logprob_max_diff",
        "model",
        "jobs",
        "url",
    ]
    assert answer["task"] == "add"
    assert answer["url"] is None


def test_every_letter_of_a_word_is_a_token_of_its_own() -> None:
    tokenizer = tokenizer_for(0)
    assert [tokenizer.decode([i]) for i in tokenizer.encode(" THEIR")] == [" ", *"THEIR"]
    assert len(tokenizer.encode("reverse")) == len(tokenizer.encode("assistant")) == 1


def test_the_corpus_is_a_function_of_its_seed() -> None:
    assert stories(1, 5) == stories(1, 5) != stories(2, 5)
    assert solved(task("sort"), 0, 1)[0]["messages"][1]["role"] == "assistant"
    assert tiny_tokenizer().encode(stories(0, 1)[0]["text"])


def test_sums_are_right() -> None:
    lines = [line.split("=") for record in sums(0, 9) for line in record["text"].splitlines()]
    assert all(evaluate(given)[0] == int(result) for given, result in lines)


def test_what_the_view_shows() -> None:
    assert sparkline([]) == ""
    assert sparkline([0.0, 0.5, 1.0]) == "▁▅█"
    assert len(sparkline([i / 500 for i in range(500)])) == 60
    view = View()
    view.add(Event("corpus", 1, 1, {"parameters": 1.7e6}))
    view.add(Event("sft", 2, 9, {"loss": 1.5, "tokens_per_second": 900.0, "evaluate/reward/correct": 0.25}))
    metrics = {"reward/correct": 0.5, "tokens_per_second": 10.0, "logprob_diff_max": 1e-6}
    metrics["held_out/reward/correct"] = 0.5
    view.add(Event("rl", 1, 5, metrics))
    from rich.console import Console

    console = Console(width=120, record=True, file=io.StringIO())
    console.print(view.render())
    text = console.export_text()
    assert "1.7 M parameters" in text
    assert "▅" in text
    assert "held-out 50%" in text
    assert "1.0e-06" in text


def test_plain_lines_for_logs(capsys: pytest.CaptureFixture[str]) -> None:
    say = plain()
    for step in range(1, 4):
        say(Event("rl", step, 3, {"reward": 0.25 * step}))
    lines = capsys.readouterr().err.splitlines()
    assert "Reinforcement learning" in lines[0]
    assert "step 3 of at most 3  reward 0.75" in lines[-1]
    assert len(lines) <= 3
