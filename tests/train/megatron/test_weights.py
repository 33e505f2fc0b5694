"""Our parameters to Megatron-Core's forms and back, for every rank. Megatron-Core itself is not needed."""

from typing import Any

import pytest
import torch
from torch import Tensor

from rondo.parallel.layout.split import split
from rondo.train.megatron.weights import Fused, PipelineStage, table
from support.tiny import TINY_BIASES, tiny_model

QWEN2 = {"architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2"}
MODELS: dict[str, dict[str, Any]] = {
    "qwen3": {},
    "qwen2-odd-vocabulary": QWEN2 | {"vocab_size": 301, "tie_word_embeddings": False},
    "llama": TINY_BIASES | {"attention_bias": False, "mlp_bias": False, "num_key_value_heads": 4},
}


def fused_of(one: Fused, ours: dict[str, Tensor]) -> Tensor:
    shape = (sum(one.rows) * one.groups + one.padding, *ours[one.ours[0]].shape[1:])
    fused = torch.full(shape, torch.nan)
    one.fill(fused, ours)
    return fused


@pytest.mark.parametrize("size", [1, 2])
@pytest.mark.parametrize("name", MODELS)
def test_every_rank_has_its_part_and_gives_it_back(name: str, size: int) -> None:
    model = tiny_model(**MODELS[name])
    whole = {name: parameter.detach() for name, parameter in model.named_parameters()}
    rows = -(-model.config.vocab_size // size)
    back = {name: torch.full_like(parameter, torch.nan) for name, parameter in whole.items()}
    for rank in range(size):
        part = split(model.config, rank, size)

        def own(name: str, of: dict[str, Tensor], cuts: Any = part.cuts) -> Tensor:
            cut = cuts.get(name)
            return of[name] if cut is None else of[name].narrow(cut.dim, cut.start, len(cut))

        held = {name: own(name, whole) for name in whole}
        entries = table(part.config, rows)
        assert sorted(name for one in entries for name in one.ours) == sorted(whole)
        for one in entries:
            fused = fused_of(one, held)
            assert not fused.isnan().any()
            for ours, tensor in one.apart(fused).items():
                own(ours, back).copy_(tensor)
    for ours, tensor in whole.items():
        assert torch.equal(back[ours], tensor), ours


def test_a_group_of_heads_lies_together() -> None:
    """As Megatron-Core reads it: the queries that look at a key head, that key head, its values."""
    model = tiny_model()
    attention = model.layers[0].attention
    entries = {one.name: one for one in table(model.config, model.config.vocab_size)}
    one = entries["decoder.layers.0.self_attention.linear_qkv.weight"]
    fused = fused_of(one, {name: p.detach() for name, p in model.named_parameters()})
    q, k, v = (getattr(attention, part).weight.detach().split(8) for part in "qkv")
    assert torch.equal(fused, torch.cat([q[0], q[1], k[0], v[0], q[2], q[3], k[1], v[1]]))


def test_gate_and_up_are_views_and_numbers_are_everybodys() -> None:
    model = tiny_model()
    entries = {one.name: one for one in table(model.config, model.config.vocab_size)}
    one = entries["decoder.layers.1.mlp.linear_fc1.weight"]
    fused = fused_of(one, {name: p.detach() for name, p in model.named_parameters()})
    parts = one.apart(fused)
    assert [part.untyped_storage().data_ptr() for part in parts.values()] == [
        fused.untyped_storage().data_ptr()
    ] * 2
    step = torch.tensor(3.0)
    assert one.apart(step) == dict.fromkeys(one.ours, step)
    found = torch.tensor(0.0)
    one.fill(found, dict.fromkeys(one.ours, step))
    assert found == 3


@pytest.mark.parametrize("name", MODELS)
def test_stages_divide_the_layers(name: str) -> None:
    config = tiny_model(**MODELS[name]).config
    whole = {one.ours: one for one in table(config, config.vocab_size)}
    stages = [table(config, config.vocab_size, PipelineStage(i, 2)) for i in range(2)]
    first, last = ([ours for one in stage for ours in one.ours] for stage in stages)
    assert {*first, *last} == {ours for one in whole for ours in one}
    assert {*first} & {*last} == ({"embed.weight"} if config.tied else set())
    assert {ours for ours in last if ours.startswith("layers.")} == {
        ours for one in whole for ours in one if ours.startswith("layers.1.")
    }
    assert not [one.name for stage in stages for one in stage if ".layers.1." in one.name]
