"""QLoRA: LoRA over 4-bit weights trains as LoRA over the weights that they represent, in an eighth of their memory."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from rondo import models
from rondo.base.errors import ConfigError, ModelError
from rondo.cli.main import main
from rondo.data.batching.packing import Document, pack
from rondo.jobs.job import Job
from rondo.models import Decoder, Packed
from rondo.models.adapters import LoraSpec, attach_lora, load_lora, trainable
from rondo.models.adapters.merged import merged_outgoing
from rondo.models.families import parse
from rondo.models.files.mapping import to_hf
from rondo.models.quantized.parts import QuantizedLinear, quantized_weights
from rondo.models.quantized.quantize.making import load_nf4
from rondo.train import jobs
from rondo.train.config import AdapterConfig, OptimConfig, TrainConfig
from rondo.train.learner.learner import Learner
from rondo.train.losses.sums import cross_entropy
from rondo.train.recipes import adapter
from support.home import own_home
from support.tiny import TINY_MOE, tiny_model, tiny_tokenizer

WIDE = {"hidden_size": 64, "intermediate_size": 128, "head_dim": 16}
TOKENS = torch.randint(3, 300, (40,), generator=torch.Generator().manual_seed(1))
CPU = torch.device("cpu")


def base(folder: Path, dtype: torch.dtype = torch.float32, **changes: Any) -> Path:
    models.save(tiny_model(**(WIDE | changes)).to(dtype), folder)
    tiny_tokenizer().save(folder)
    return folder


def dequantized(folder: Path, dtype: torch.dtype = torch.float32) -> Decoder:
    """The model of the weights that the 4-bit ones represent."""
    quantized, plain = load_nf4(folder, dtype, CPU), models.load(folder, dtype)
    with torch.no_grad():
        for name, weight in quantized_weights(quantized).items():
            plain.get_parameter(name).copy_(weight.dequantized(dtype))
    return plain


def with_lora(model: Decoder) -> Decoder:
    attach_lora(model, LoraSpec(8, 16))
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for parameter in trainable(model):
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.05)
    return model


def logits(model: Decoder) -> torch.Tensor:
    attend = Packed([0, len(TOKENS)])
    return model(TOKENS, attend.positions, attend)


def gradients(model: Decoder, **memory: Any) -> list[torch.Tensor]:
    learner = Learner(model, OptimConfig(**memory))
    rows = pack([Document(TOKENS.tolist(), [1.0] * len(TOKENS))], 64)
    learner.forward_backward(rows, cross_entropy)
    return [p.grad for p in trainable(learner.model)]  # type: ignore[misc]


@pytest.mark.parametrize("memory", [{}, {"checkpointing": "full"}, {"checkpointing": "selective"}])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_gradients_are_those_of_lora_over_the_dequantized_weights(
    dtype: torch.dtype, memory: dict[str, Any], tmp_path: Path
):
    folder = base(tmp_path / "base", dtype)
    ours = gradients(with_lora(load_nf4(folder, dtype, CPU)), **memory)
    theirs = gradients(with_lora(dequantized(folder, dtype)), **memory)
    assert len(ours) == 2 * 2 * 7
    for own, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(own, other, rtol=0, atol=1e-6 if dtype == torch.float32 else 2e-4)


def test_the_base_is_in_four_bits(tmp_path: Path):
    """4 bits, 8 for 64 weights, and 32 for 64 times 256 of them."""
    model = load_nf4(base(tmp_path / "base"), torch.float32, CPU)
    weights = quantized_weights(model).values()
    numbers = sum(torch.Size(weight.shape).numel() for weight in weights)
    held = sum(weight.nbytes for weight in weights)
    assert len(weights) == 14
    others = sum(p.nbytes for name, p in model.layers.named_parameters() if "norm" in name)
    assert held + others == sum(p.nbytes for p in model.layers.parameters())
    assert 4.125 <= 8 * held / numbers < 4.4, "small weights have few scales for each scale of scales"


def test_experts_are_quantized_too(tmp_path: Path):
    folder = base(tmp_path / "base", **(TINY_MOE | {"moe_intermediate_size": 64}))
    ours, theirs = load_nf4(folder, torch.float32, CPU), dequantized(folder)
    assert "layers.0.mlp.experts.gate" in quantized_weights(ours)
    torch.testing.assert_close(logits(ours), logits(theirs))
    merged = {tensor.name: tensor.make() for tensor in merged_outgoing(ours)}
    for name, weight in to_hf(theirs):
        torch.testing.assert_close(merged[name], weight)


def test_uneven_columns_are_an_error(tmp_path: Path):
    with pytest.raises(Exception, match="has 32 columns, and nf4 has groups of 64"):
        load_nf4(base(tmp_path / "base", hidden_size=32), torch.float32, CPU)


def job(folder: Path, *more: str) -> list[str]:
    lines = [
        json.dumps({"prompt": f"the user asks {i % 5}", "completion": f" the assistant answers {i % 5}"})
        for i in range(60)
    ]
    (folder / "data.jsonl").write_text("\n".join(lines))
    found = ["train", "sft", "--model", str(folder / "base"), "--data", str(folder / "data.jsonl")]
    found += ["--train.adapter.kind=lora", "--train.adapter.quantize_base=nf4", "--train.lr=0.01"]
    found += ["--train.tokens_per_step=400", "--train.tokens_per_microbatch=256", "--train.max_length=64"]
    return [*found, "--train.steps=12", "--train.warmup=0", *more]


@pytest.fixture(scope="module")
def ground(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a base and data."""
    folder = tmp_path_factory.mktemp("ground")
    base(folder / "base")
    return folder


@pytest.fixture(scope="module")
def trained(ground: Path) -> Job:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RONDO_HOME", str(own_home(ground / "home")))
        assert main(job(ground)) == 0
        (found,) = Job.all()
    return found


def test_a_job_learns_and_leaves_an_adapter_and_a_merged_model(trained: Job, ground: Path):
    losses = [row["loss"] for row in trained.metrics()]
    assert losses[-1] < 0.5 * losses[0]
    assert trained.spec()["config"]["adapter"]["quantize_base"] == "nf4"
    learned = load_nf4(ground / "base", torch.float32, CPU)
    load_lora(learned, trained.adapter)
    exported = models.load(trained.export)
    assert parse(json.loads((trained.export / "config.json").read_text())).quantization is None
    assert not any(isinstance(module, QuantizedLinear) for module in exported.modules())
    torch.testing.assert_close(logits(exported), logits(learned), atol=2e-4, rtol=1e-4)
    before = logits(load_nf4(ground / "base", torch.float32, CPU))
    assert (logits(learned) - before).abs().max() > 0.1


def test_a_stopped_job_resumes_exactly(
    trained: Job, ground: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("RONDO_HOME", str(own_home(tmp_path)))
    spec = trained.spec()["config"]
    told = {name: value for name, value in spec.items() if name in TrainConfig.model_fields}
    origin = {"model": str(ground / "base"), "data": str(ground / "data.jsonl"), "save_every": 4}
    plan = jobs.plan("sft", TrainConfig.model_validate(told | origin))
    assert plan.job.name == trained.name

    def stop(step: int, metrics: Any) -> None:
        if step == 6:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        jobs.run(plan, stop)
    resumed: list[int] = []
    jobs.run(plan, on_resume=resumed.append)
    assert resumed == [4]
    ours, theirs = (load_file(each.adapter / "adapter_model.safetensors") for each in (plan.job, trained))
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)


def test_a_reward_model_is_not_quantized():
    settings = AdapterConfig(kind="lora", quantize_base="nf4")
    with pytest.raises(ConfigError, match="a reward model cannot be quantized"):
        adapter.check("reward", settings, tiny_model(**WIDE).config)


def test_quantize_base_needs_a_lora():
    with pytest.raises(ValueError, match="needs a frozen base: set kind to lora"):
        TrainConfig.model_validate({"adapter": {"quantize_base": "nf4"}})


def test_a_base_without_an_adapter_is_not_trained(tmp_path: Path):
    with pytest.raises(ModelError, match="cannot be trained"):
        Learner(load_nf4(base(tmp_path / "base"), torch.float32, CPU), OptimConfig())
