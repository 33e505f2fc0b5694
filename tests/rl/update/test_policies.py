"""Adapters as policies: the engine computes with base and adapter as the learner does, whichever way it has them."""

import json
from pathlib import Path

import pytest
import torch

from rondo import models
from rondo.base.storage.files import atomic_dir
from rondo.client.types import SamplingParams
from rondo.models.adapters import adapter_of
from rondo.models.adapters.attached import switched_off
from rondo.rl import jobs
from rondo.rl.config import RlConfig
from rondo.rl.loop import Loop
from rondo.rl.tasks.registry import task
from rondo.rl.update.packing import StepTokens, packed
from rondo.train.config import AdapterConfig
from rondo.train.recipes import adapter
from support.home import own_home
from support.tiny import tiny_model, tiny_tokenizer

CONFIG = RlConfig(
    prompts_per_step=4,
    samples_per_prompt=4,
    steps=3,
    lr=1e-2,
    kl=0.1,
    eval_prompts=4,
    max_tokens=6,
    tokens_per_microbatch=256,
)


@pytest.mark.parametrize("mode", ["sync", "async"])
@pytest.mark.parametrize("kind", ["lora", "tokenformer"])
def test_engine_and_learner_agree_on_base_and_adapter(kind: str, mode: str) -> None:
    own = AdapterConfig.model_validate({"kind": kind, "r": 4})
    config = CONFIG.model_copy(update={"adapter": own, "mode": mode})
    model = tiny_model()
    adapter.put_on(model, own, seed=0, base="tiny")
    base = {name: p.detach().clone() for name, p in model.named_parameters() if not p.requires_grad}
    loop = Loop(model, tiny_tokenizer(), task("reverse"), config)
    metrics = [loop.step() for _ in range(2)]
    assert metrics[0]["logprob_diff_max"] < 2e-5
    assert metrics[0]["reference_kl"] == pytest.approx(0.0, abs=1e-9), "the reference is the base"
    assert metrics[1]["reference_kl"] > 0
    problems = loop.task.prompts(5, 4)
    groups = loop.collector.answer(problems, SamplingParams(n=2, max_tokens=6, logprobs=0), [1, 2, 3, 4])
    tokens = StepTokens(groups)
    rows = packed(
        tokens,
        range(4),
        range(4),
        counts=lambda sample: True,
        aggregate="token",
        longest=6,
        share_prefix=True,
        budget=256,
    )
    for row, found in zip(rows, loop.learner.logprobs(rows), strict=True):
        assert abs(row.columns["sampler_logprobs"] - found).max() < 2e-5
    with switched_off(model):
        assert abs(loop.learner.logprobs(rows)[0] - rows[0].columns["sampler_logprobs"]).max() > 1e-4
    assert all(torch.equal(base[name], p) for name, p in model.named_parameters() if name in base)
    assert adapter_of(model) is not None
    loop.close()


def test_a_job_leaves_the_adapter_and_the_model_it_was_merged_into(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RONDO_HOME", str(own_home(tmp_path)))
    with atomic_dir(tmp_path / "models" / "tiny") as folder:
        models.save_into(tiny_model(), folder)
        tiny_tokenizer().save(folder)
    own = AdapterConfig(kind="lora", r=4)
    plan = jobs.plan(CONFIG.model_copy(update={"model": "tiny", "adapter": own}))
    result = jobs.run(plan)
    written = json.loads((plan.job.adapter / "adapter_config.json").read_text())
    assert written["base_model_name_or_path"] == str(tmp_path / "models" / "tiny")
    assert models.load(result).config.vocab_size == tiny_model().config.vocab_size
    assert plan.job.state() == "succeeded"
    assert {"held_out/pass@1", "held_out/reward"} <= plan.job.status().keys()
