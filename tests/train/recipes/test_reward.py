"""Reward models: what transformers makes of them, and training one."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForSequenceClassification

from rondo import models
from rondo.base.errors import ConfigError, ModelError
from rondo.base.storage.files import atomic_dir
from rondo.engine.entrypoints.llm import LLM
from rondo.models.fresh import make_scorer
from rondo.train import jobs
from rondo.train.config import AdapterConfig, RewardConfig, TrainConfig
from rondo.train.recipes.reward_model import RewardModel
from support.families import CONFIGS
from support.home import own_home
from support.tiny import tiny_model, tiny_tokenizer

RECORDS = [
    {
        "prompt": f"the user asks {i % 7}",
        "chosen": "the assistant answers" + " to" * (i % 3),
        "rejected": "reverse" + " add" * (i % 4),
    }
    for i in range(32)
]


def test_the_head_that_scores_is_transformers(tmp_path: Path) -> None:
    tokenizer = tiny_tokenizer()
    model = tiny_model()
    make_scorer(model, seed=3)
    models.save(model, tmp_path / "judge")
    tokenizer.save(tmp_path / "judge")
    texts = ["the user asks", "reverse add sort", "x"]
    ours = RewardModel.load(tmp_path / "judge").score_texts(texts)
    theirs = AutoModelForSequenceClassification.from_pretrained(tmp_path / "judge", num_labels=1)
    with torch.no_grad():
        expected = [float(theirs(torch.tensor([tokenizer.encode(text)])).logits[0, 0]) for text in texts]
    assert ours == pytest.approx(expected, rel=1e-4, abs=1e-5)
    assert RewardModel(model, tokenizer).score_texts(texts) == pytest.approx(ours)
    with pytest.raises(ModelError, match="reward model: it scores texts, and writes none"):
        LLM(tmp_path / "judge")
    with pytest.raises(ModelError, match="this is a language model"):
        RewardModel(tiny_model(), tokenizer)


@pytest.mark.parametrize("family", ["llama3", "qwen3-moe", "gemma2", "gemma3", "phi3", "deepseek-v3"])
def test_transformers_reward_models_are_read(family: str, tmp_path: Path) -> None:
    torch.manual_seed(1)
    settings = CONFIGS[family]()
    settings.num_labels = 1
    theirs = AutoModelForSequenceClassification.from_config(settings, dtype=torch.float32).eval()
    theirs.save_pretrained(tmp_path)
    judge = RewardModel(models.load(tmp_path), tiny_tokenizer())
    texts = [[5, 9, 31, 7], [44, 3]]
    with torch.no_grad():
        expected = [float(theirs(torch.tensor([text])).logits[0, 0]) for text in texts]
    assert judge.score(texts) == pytest.approx(expected, rel=1e-3, abs=1e-5)


def test_answers_score_alike_alone_and_beside_others() -> None:
    model, tokenizer = tiny_model(), tiny_tokenizer()
    make_scorer(model)
    judge = RewardModel(model, tokenizer, tokens_per_row=24)
    prompt, answers = [7, 8, 9], [[5, 6], [5, 6, 7, 8], [9]]
    together = judge.score_groups([(prompt, answers)])[0]
    alone = [judge.score([[*prompt, *answer]])[0] for answer in answers]
    assert together == pytest.approx(alone, rel=1e-4, abs=1e-6)
    talk = [{"role": "user", "content": "add"}, {"role": "assistant", "content": "sort"}]
    said = (
        tokenizer.apply_chat(talk[:1])
        + tokenizer.encode("sort", add_special=False)
        + list(tokenizer.eos_ids[:1])
    )
    assert judge.score_chats([talk]) == pytest.approx(judge.score([said]))


def test_more_than_one_label_is_refused() -> None:
    hf = dict(tiny_model().config.hf or {}) | {"architectures": ["Qwen3ForSequenceClassification"]}
    with pytest.raises(ModelError, match="sorts texts into 3 classes"):
        models.parse(hf | {"id2label": {"0": "a", "1": "b", "2": "c"}})


@pytest.fixture(scope="module")
def ground(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("ground")
    with atomic_dir(folder / "model") as model:
        models.save_into(tiny_model(), model)
        tiny_tokenizer().save(model)
    (folder / "data.jsonl").write_text("\n".join(map(json.dumps, RECORDS)))
    return folder


def config(ground: Path, adapter: str) -> TrainConfig:
    return TrainConfig(
        model=str(ground / "model"),
        data=str(ground / "data.jsonl"),
        steps=8,
        tokens_per_step=400,
        tokens_per_microbatch=128,
        max_length=60,
        lr=1e-2,
        warmup=0,
        reward=RewardConfig(center=0.01),
        adapter=AdapterConfig(kind=adapter, r=4),  # type: ignore[arg-type]
    )


@pytest.mark.parametrize("adapter", ["none", "lora"])
def test_it_learns_which_answers_were_preferred(
    adapter: str, ground: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RONDO_HOME", str(own_home(tmp_path)))
    plan = jobs.plan("reward", config(ground, adapter))
    left = jobs.run(plan)
    rows = [json.loads(line) for line in (plan.job.path / "metrics.jsonl").read_text().splitlines()]
    assert rows[-1]["loss"] < rows[0]["loss"] - 0.1
    assert rows[-1]["accuracy"] > 0.9
    judge = RewardModel.load(left)
    chosen, rejected = (
        judge.score_texts([record["prompt"] + record[name] for record in RECORDS])
        for name in ("chosen", "rejected")
    )
    assert np.mean(np.array(chosen) > np.array(rejected)) > 0.9
    with pytest.raises(ModelError, match="reward model: it scores"):
        jobs.plan("sft", config(ground, "none").model_copy(update={"model": str(left)}))


def test_a_tokenformer_has_no_place_in_a_reward_model(ground: Path) -> None:
    with pytest.raises(ConfigError, match="must be merged into it"):
        jobs.plan("reward", config(ground, "tokenformer"))
