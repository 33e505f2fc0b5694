"""From records to gradients: SFT and DPO on a small model are TRL's trainers', tokens, templates, losses and all."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from rondo import models
from rondo.data.batching.packing import pack
from rondo.text.tokenizer import Tokenizer
from rondo.train.config import OptimConfig
from rondo.train.evaluation.evaluator import Evaluator
from rondo.train.learner.learner import Learner
from rondo.train.losses.objective import LossRequest, next_tokens
from rondo.train.losses.preference import Dpo
from rondo.train.recipes.answers import pairs
from rondo.train.recipes.preference import Preference, pair_trees
from rondo.train.recipes.reference import Computed
from rondo.train.recipes.sft import examples
from support.peers import run_peer
from support.tiny import tiny_model, tiny_tokenizer

pytestmark = pytest.mark.real

BETA = 0.3
TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
"""With nothing after the end of a turn: TRL learns that too, and we do not, since a model is not asked to say it."""


def tokenizer() -> Tokenizer:
    return tiny_tokenizer().with_chat_template(TEMPLATE)


PAIRS = [
    {
        "prompt": f"the user asks {i}",
        "chosen": (" the assistant answers" if i % 2 else " reverse") + " to" * (i % 3),
        "rejected": (" reverse add" if i % 2 else " the assistant asks") + " sort" * (i % 4),
    }
    for i in range(6)
]
TALKS = [
    {
        "prompt": [{"role": "user", "content": f"add {i}"}],
        "completion": [{"role": "assistant", "content": "sort to" * (i + 1)}],
    }
    for i in range(4)
]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    found = {}
    for seed, name in enumerate(("model", "reference")):
        folder = tmp_path_factory.mktemp(name)
        models.save_into(tiny_model(seed=seed), folder)
        tokenizer().save(folder)
        found[name] = str(folder)
    return found


@pytest.fixture(scope="module")
def theirs(folders: dict[str, str]) -> dict[str, dict[str, float]]:
    plain = [{"prompt": pair["prompt"], "completion": pair["chosen"]} for pair in PAIRS]
    asked: dict[str, Any] = {
        "sft": {"records": plain, **folders},
        "talks": {"records": TALKS, **folders},
        "dpo": {"records": PAIRS, "beta": BETA, **folders},
    }
    said = run_peer("trl", Path(__file__).with_name("_trl_first_step.py"), asked=json.dumps(asked))
    found: dict[str, dict[str, float]] = json.loads(said.splitlines()[-1])
    return found


def first_step(learner: Learner, asked: LossRequest) -> dict[str, float]:
    metrics = learner.forward_backward(asked.rows, asked.loss)
    gradients = [p.grad for p in learner.model.parameters() if p.grad is not None]
    return metrics | {"grad_norm": float(torch.nn.utils.get_total_norm(gradients))}


@pytest.mark.parametrize("kind", ["sft", "talks"])
def test_sft_is_trls(kind: str, folders: dict[str, str], theirs: dict[str, dict[str, float]]) -> None:
    learner = Learner(models.load(folders["model"]), OptimConfig())
    records: dict[str, list[dict[str, Any]]] = {
        "sft": [{"prompt": pair["prompt"], "completion": pair["chosen"]} for pair in PAIRS],
        "talks": [{"messages": [*talk["prompt"], *talk["completion"]]} for talk in TALKS],
    }
    rows = pack(examples(tokenizer(), records[kind], 256), 48)
    assert len(rows) > 1
    own = first_step(learner, next_tokens(learner, rows))
    assert {name: own[name] for name in theirs[kind]} == pytest.approx(theirs[kind], rel=1e-4)


def test_dpo_is_trls(folders: dict[str, str], theirs: dict[str, dict[str, float]]) -> None:
    learner = Learner(models.load(folders["model"]), OptimConfig())
    before = Computed(Evaluator(models.load(folders["reference"])))
    rows = pack(pair_trees(pairs(tokenizer(), PAIRS)), 60)
    assert len(rows) > 1
    own = first_step(learner, Preference(Dpo(BETA), before)(learner, rows))
    assert {name: own[name] for name in theirs["dpo"]} == pytest.approx(theirs["dpo"], rel=1e-4)
    assert 0 < own["accuracy"] < 1
