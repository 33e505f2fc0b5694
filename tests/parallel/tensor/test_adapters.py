"""What the ranks say together with an adapter must be what PEFT's whole model says with it."""

from typing import Any

import peft
import pytest
import torch
from transformers import AutoModelForCausalLM

from engine.weights.test_adapters import write_loras, write_tokenformer
from rondo.models import Packed, load
from rondo.models.adapters import load_adapter, read_adapter
from rondo.models.adapters.mixed import AdapterWeights, Mixer, Sites, Span
from rondo.models.files.checkpoint import build
from rondo.models.heads.additions import adding
from rondo.parallel.tensor import load as sharded
from support.families import VOCAB, reference

TOLERANCE = 1e-5
"""Largest difference of a logit in fp32, relative to the largest logit."""
TOKENS = torch.arange(3, 3 + 23) * 7 % VOCAB
ATTENTION = {
    "deepseek-v3": ["q_a_proj", "q_b_proj", "kv_a_proj_with_mqa", "kv_b_proj", "o_proj"],
    "qwen3-moe": ["q_proj", "k_proj", "v_proj", "o_proj"],
}


def served_by(model: Any, adapter: Any) -> Mixer | Any:
    """The adapter's weights, as a rank applies them, and the mixture for all of TOKENS."""
    sites = Sites(model)
    served = AdapterWeights(sites, read_adapter(build(model.config), adapter, device=sites.device)[1].items())
    served.narrow(sites, model.split.columns())
    spans = [Span(served, 0, len(TOKENS))]
    return served, Mixer(sites).mix(len(TOKENS), spans, [served] * len(TOKENS))


def logits_of(model: Any, mixture: Any = None) -> torch.Tensor:
    with torch.inference_mode(), adding(mixture):
        return model(TOKENS, torch.arange(len(TOKENS)), Packed([0, len(TOKENS)]))


@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize("name", ["llama3", "qwen2", "phi3", "gemma2", "olmo2", "deepseek-v3", "qwen3-moe"])
def test_lora_on_ranks_is_peft(name, size, tmp_path, ranks):
    reference(name).save_pretrained(tmp_path / "base")
    write_loras(tmp_path, name, {"lora": {"r": 6, "target_modules": ATTENTION.get(name, "all-linear")}})
    model: Any = AutoModelForCausalLM.from_pretrained(
        tmp_path / "base", dtype=torch.float32, attn_implementation="eager"
    )
    with torch.no_grad():
        base = model(TOKENS[None], use_cache=False).logits[0]
        tuned = peft.PeftModel.from_pretrained(model, tmp_path / "lora").eval()
        want = tuned(TOKENS[None], use_cache=False).logits[0]
    assert (want - base).abs().max() > 0.01 * want.abs().max()

    def work(group):
        model = sharded.load(tmp_path / "base", group)
        served, mixture = served_by(model, tmp_path / "lora")
        return logits_of(model, mixture), served.nbytes

    results = ranks.run(size, work)
    for got, _ in results:
        assert torch.equal(got, results[0][0])
        assert (got - want).abs().max() < TOLERANCE * want.abs().max()
    whole = AdapterWeights(
        Sites(load(tmp_path / "base")), read_adapter(load(tmp_path / "base"), tmp_path / "lora")[1].items()
    )
    assert all(nbytes < whole.nbytes for _, nbytes in results)


def test_tokenformer_on_ranks_is_the_whole_models(tmp_path, ranks):
    """It adds to the sum, on every rank the same, so nothing of it is divided."""
    reference("llama3").save_pretrained(tmp_path / "base")
    whole = load(tmp_path / "base")
    base = logits_of(whole)
    write_tokenformer(tmp_path / "tokenformer", whole, seed=1, heads=4)
    load_adapter(whole, tmp_path / "tokenformer")
    want = logits_of(whole)
    assert not torch.allclose(want, base, rtol=0.01)

    def work(group):
        model = sharded.load(tmp_path / "base", group)
        return logits_of(model, served_by(model, tmp_path / "tokenformer")[1])

    for got in ranks.run(2, work):
        assert (got - want).abs().max() < TOLERANCE * want.abs().max()
