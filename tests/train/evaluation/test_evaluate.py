"""Evaluation: against transformers' own arithmetic, in the middle of training, and of a model by itself."""

import json
import math
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from rondo import models
from rondo.base.errors import ConfigError, InvalidRequest
from rondo.base.storage.files import atomic_dir
from rondo.base.storage.hashing import sha256_file
from rondo.cli.main import main
from rondo.models.adapters import LoraSpec, attach_lora, merge
from rondo.models.files.mapping import to_hf
from rondo.train import jobs
from rondo.train.config import EvaluateConfig, TrainConfig
from rondo.train.evaluation.evaluate import Evaluation, choose, log_likelihoods
from rondo.train.evaluation.evaluate_model import evaluate_model
from rondo.train.evaluation.evaluator import Evaluator
from rondo.train.evaluation.tasks import MultipleChoice, Question, read_tasks
from support.home import own_home
from support.tiny import tiny_model, tiny_tokenizer

CHOICES = [
    {"prompt": "the user asks", "choices": [" sort", " the assistant answers", " add to"], "answer": 1},
    {"prompt": "reverse", "choices": [" add", " x"], "answer": 0},
    {"messages": [{"role": "user", "content": "add"}], "choices": ["to", "sort it"], "answer": 1},
]
QUESTIONS = [
    {"task": "write", "prompt": "the user", "answer": "no such thing"},
    {"task": "write", "messages": [{"role": "user", "content": "add"}], "answer": ["a", "b"], "stop": "to"},
]
HELD_OUT = [{"text": "the user asks and the assistant answers"}, {"text": "reverse add sort countdown to"}]


@pytest.fixture(scope="module")
def ground(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("ground")
    with atomic_dir(folder / "model") as model:
        models.save_into(tiny_model(), model)
        tiny_tokenizer().save(model)
    files = {
        "data": [{"text": f"the user asks {i} and the assistant answers {i * i}"} for i in range(40)],
        "held_out": HELD_OUT,
        "choose": CHOICES,
        "write": QUESTIONS,
    }
    for name, records in files.items():
        (folder / f"{name}.jsonl").write_text("\n".join(map(json.dumps, records)))
    return folder


@torch.no_grad()
def transformers_says(model: torch.nn.Module, prompt: list[int], answer: list[int]) -> float:
    logits = model(torch.tensor([[*prompt, *answer]])).logits[0].log_softmax(-1)
    return sum(float(logits[len(prompt) + i - 1, token]) for i, token in enumerate(answer))


def test_log_likelihoods_of_choices_are_transformers(ground: Path) -> None:
    theirs = AutoModelForCausalLM.from_pretrained(ground / "model", dtype=torch.float32)
    choices = [
        task
        for task in read_tasks(str(ground / "choose.jsonl"), tiny_tokenizer())
        if isinstance(task, MultipleChoice)
    ]
    evaluator = Evaluator(models.load(ground / "model"))
    found = log_likelihoods(evaluator, choices, budget=64)
    expected = [[transformers_says(theirs, one.prompt, answer) for answer in one.answers] for one in choices]
    for own, peer in zip(found, expected, strict=True):
        assert own.tolist() == pytest.approx(peer, rel=1e-4)
    best = [max(range(len(sums)), key=sums.__getitem__) for sums in expected]
    right = sum(one == choice.right for one, choice in zip(best, choices, strict=True))
    assert choose(evaluator, choices, 64)["choose/accuracy"] == pytest.approx(right / 3)


def test_perplexity_is_transformers(
    ground: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("RONDO_HOME", str(own_home(tmp_path)))
    asked = ["evaluate", str(ground / "model"), "--data", str(ground / "held_out.jsonl"), "--json"]
    assert main([*asked, "--tasks", str(ground / "write.jsonl")]) == 0
    found = json.loads(capsys.readouterr().out)
    theirs = AutoModelForCausalLM.from_pretrained(ground / "model", dtype=torch.float32)
    tokenizer = tiny_tokenizer()
    total, count = 0.0, 0
    for record in HELD_OUT:
        ids = [*tokenizer.encode(record["text"]), *tokenizer.eos_ids[:1]]
        total += transformers_says(theirs, ids[:1], ids[1:])
        count += len(ids) - 1
    assert found["perplexity"] == pytest.approx(math.exp(-total / count), rel=1e-4)
    assert found["write/accuracy"] == 0.0
    assert main([*asked[:-1]]) == 0
    assert "perplexity" in capsys.readouterr().out
    assert main(["evaluate", str(ground / "model")]) != 0
    assert "give --data or --tasks" in capsys.readouterr().err


def test_what_is_written_is_what_the_trained_weights_say(ground: Path) -> None:
    """With an adapter on, too; and a model that is evaluated stays as it is."""
    model, tokenizer = models.load(ground / "model"), tiny_tokenizer()
    adapter = attach_lora(model, LoraSpec(4))
    with torch.no_grad():
        for part in adapter.parts.values():
            part.b.normal_(0.0, 0.3, generator=torch.Generator().manual_seed(1))
    plain = next(
        task for task in read_tasks(str(ground / "write.jsonl"), tokenizer) if isinstance(task, Question)
    )
    merged = models.load(ground / "model")
    twin = attach_lora(merged, LoraSpec(4))
    for path, part in twin.parts.items():
        part.load_state_dict(adapter.parts[path].state_dict())
    merge(merged)
    theirs = AutoModelForCausalLM.from_pretrained(ground / "model", dtype=torch.float32)
    names = dict(to_hf(merged))
    theirs.load_state_dict({n: t.detach().clone() for n, t in names.items()}, strict=False)
    out = theirs.generate(
        torch.tensor([plain.prompt]), max_new_tokens=8, do_sample=False, eos_token_id=list(tokenizer.eos_ids)
    )
    said = tokenizer.decode(out[0, len(plain.prompt) :].tolist())
    assert said.strip()
    right = Question("write", plain.prompt, plain.text, (said,), (), plain.matcher)
    evaluation = Evaluation(tokenizer, 64, 8, questions=[right])
    before = [p.detach().clone() for p in model.parameters()]
    assert evaluation(Evaluator(model)) == {"evaluate/write/accuracy": 1.0}
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))


def test_training_is_not_changed_by_being_watched(
    ground: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(home: Path, evaluate: EvaluateConfig) -> jobs.TrainJobPlan:
        monkeypatch.setenv("RONDO_HOME", str(own_home(home)))
        config = TrainConfig(
            model=str(ground / "model"),
            data=str(ground / "data.jsonl"),
            steps=5,
            tokens_per_step=200,
            tokens_per_microbatch=128,
            max_length=64,
            lr=1e-2,
            ema=0.5,
            export="average",
            evaluate=evaluate,
        )
        plan = jobs.plan("pretrain", config)
        jobs.run(plan)
        return plan

    tasks = [str(ground / "choose.jsonl"), str(ground / "write.jsonl")]
    plain = run(tmp_path / "plain", EvaluateConfig())
    watched = run(
        tmp_path / "watched",
        EvaluateConfig(every=2, data=str(ground / "held_out.jsonl"), tasks=tasks, max_tokens=4),
    )
    assert plain.job.name == watched.job.name
    weights = "export/model.safetensors"
    assert sha256_file(plain.job.path / weights) == sha256_file(watched.job.path / weights)
    rows = [json.loads(line) for line in (watched.job.path / "metrics.jsonl").read_text().splitlines()]
    asked = {row["step"]: {name for name in row if name.startswith("evaluate/")} for row in rows}
    assert [step for step, names in asked.items() if names] == [2, 4, 5]
    assert {"evaluate/perplexity", "evaluate/choose/accuracy", "evaluate/write/accuracy"} <= asked[4]
    assert rows[-1]["evaluate/perplexity"] < rows[1]["evaluate/perplexity"]
    left = TrainConfig(
        model=str(watched.job.export), evaluate=EvaluateConfig(data=str(ground / "held_out.jsonl"))
    )
    assert evaluate_model(left)["evaluate/perplexity"] == pytest.approx(rows[-1]["evaluate/perplexity"])


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("{", "line 1: Expecting"),
        ('{"prompt": "a", "choices": ["b"], "answer": 0}', "two or more"),
        ('{"prompt": "a", "choices": ["b", "c"], "answer": 2}', "from 0 to 1"),
        ('{"prompt": "a"}', 'no "answer"'),
        ('{"answer": "a"}', 'either a "prompt"'),
        ('{"prompt": "a", "answer": "b", "compare": "numeric"}', "is not a number"),
        ('{"prompt": "a", "answer": "b", "choises": []}', "'choises' is not a field"),
    ],
)
def test_a_task_that_makes_no_sense_is_named(line: str, says: str, tmp_path: Path) -> None:
    (tmp_path / "bad.jsonl").write_text(line)
    with pytest.raises(InvalidRequest, match=says):
        read_tasks(str(tmp_path / "bad.jsonl"), tiny_tokenizer())


def test_written_answers_are_refused_before_the_first_step_where_nobody_has_the_whole_model(
    ground: Path,
) -> None:
    told = EvaluateConfig(tasks=str(ground / "write.jsonl"))
    with pytest.raises(ConfigError, match="need the whole model in one process"):
        Evaluation.of(told, tiny_tokenizer(), 64, None, divided=True)
