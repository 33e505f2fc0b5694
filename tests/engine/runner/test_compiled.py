"""The layers as one compiled call against the model itself, whatever way the tokens come and the threads share them."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from rondo import models
from rondo.client.types import SamplingParams
from rondo.engine.config import EngineConfig
from rondo.engine.entrypoints.llm import LLM
from rondo.engine.kv.cache import KVCache
from rondo.engine.runner.compiled import CompiledDecoder, CompiledStep
from rondo.models.adapters import LoraSpec, attach_lora, detach
from rondo.ops import RopeSpec, rope_tables
from rondo.ops.dispatch import use_reference
from rondo.ops.native.build.build import compiler
from rondo.ops.native.decoder.layers import DenseDecoder, Rotations, TokenRows
from support.families import CONFIGS, reference
from support.feeder import SIZE, WAYS, Feeder, check_bf16, model_of
from support.threads import threads
from support.tiny import tiny_model

pytestmark = pytest.mark.skipif(
    not compiler(), reason="no C compiler here: install gcc to test the compiled layers"
)

KINDS: dict[str, dict[str, Any]] = {
    "qwen3": {},
    "llama": {"model_type": "llama", "architectures": ["LlamaForCausalLM"]},
    "qwen2: biases": {"model_type": "qwen2", "architectures": ["Qwen2ForCausalLM"]},
    "mistral: a window": {
        "model_type": "mistral",
        "architectures": ["MistralForCausalLM"],
        "sliding_window": 5,
    },
    "every head its own": {"num_key_value_heads": 4},
    "one head for all": {"num_key_value_heads": 1, "head_dim": 24, "num_attention_heads": 2},
    "a width that threads cannot share evenly": {"intermediate_size": 112},
    "frequencies by length": {
        "rope_scaling": {"rope_type": "dynamic", "factor": 2.0},
        "max_position_embeddings": 16,
    },
}


@pytest.mark.parametrize("kind", KINDS)
def test_every_way_gives_the_models_own_rows_and_the_same_bits(kind: str) -> None:
    feeder = Feeder(model_of(**KINDS[kind]))
    for ours, theirs in zip(feeder.same_in_every_way(1, 2, 3, 4), feeder.want(), strict=True):
        assert (ours - theirs).abs().max() <= 1e-4 * theirs.abs().max()


@pytest.mark.parametrize("kept", [torch.float16, torch.int8, torch.float8_e4m3fn], ids=str)
def test_a_narrow_cache_is_read_as_it_was_written_in_every_way(kept: torch.dtype) -> None:
    feeder = Feeder(model_of(), kept)
    for ours, theirs in zip(feeder.same_in_every_way(2), feeder.want(), strict=True):
        assert (ours - theirs).abs().max() <= 0.2 * theirs.abs().max()


def test_bf16_rounds_where_the_model_does() -> None:
    feeder = Feeder(model_of().to(torch.bfloat16))
    check_bf16(feeder.same_in_every_way(1), feeder.want())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_a_row_is_the_same_beside_few_and_beside_many(dtype: torch.dtype) -> None:
    """Few rows take another way through a product, and through what is left of its columns."""
    feeder = Feeder(model_of(vocab_size=107, hidden_size=272).to(dtype))
    x = torch.randn(40, 272, generator=torch.Generator().manual_seed(0)).to(dtype)
    decoder = feeder.compiled
    every = decoder.head(x)
    for count in range(1, 18):
        for way in (1, 2):
            with threads(way):
                assert torch.equal(decoder.head(x[:count]), every[:count])


@pytest.mark.parametrize("count", [1, 2, 3])
def test_only_the_rows_that_are_read_come_back(count: int) -> None:
    feeder = Feeder(model_of())
    [counts] = WAYS["whole"]
    owners = torch.tensor([i for i, n in enumerate(counts) for _ in range(n)])
    positions = torch.cat([torch.arange(n) for n in counts])
    slots = feeder.tables[owners, positions // SIZE] * SIZE + positions % SIZE
    tokens = torch.cat(feeder.tokens)
    step = CompiledStep(
        TokenRows(tokens, positions, 40, feeder.tables[None], owners, positions + 1, slots[None], 40, True)
    )
    with threads(count), torch.inference_mode():
        every, logits = feeder.compiled.trunk(step, None), feeder.compiled.logits(step, None)
        assert torch.equal(feeder.compiled.head(every), logits)
        theirs = feeder.compiled.model.head(every)
        assert (logits - theirs).abs().max() <= 1e-5 * theirs.abs().max()
        for read in ([12, 21, 61, 62], [0], [40, 41], list(range(5, 50, 3)), []):
            index = torch.tensor(read, dtype=torch.int64)
            assert torch.equal(feeder.compiled.trunk(step, index), every[index])
            assert torch.equal(feeder.compiled.logits(step, index), logits[index])


@pytest.mark.parametrize("how", ["moved", "replaced"])
def test_weights_may_become_others(how: str) -> None:
    model = model_of()
    feeder = Feeder(model)
    with torch.inference_mode():
        before = feeder.feed(WAYS["whole"])
    for module in model.modules():
        for name, parameter in list(module.named_parameters(recurse=False)):
            changed = parameter.data * 1.1
            if how == "moved":
                parameter.data = changed
            else:
                setattr(module, name, torch.nn.Parameter(changed, requires_grad=False))
    feeder.cache.release()
    feeder.cache.allocate()
    assert feeder.compiled.can([])
    with torch.inference_mode():
        after = feeder.feed(WAYS["whole"])
    for ours, theirs, old in zip(after, feeder.want(), before, strict=True):
        assert (ours - theirs).abs().max() <= 1e-4 * theirs.abs().max()
        assert not torch.allclose(ours, old)


def test_weights_of_another_kind_are_not_read_as_they_were() -> None:
    model = model_of()
    compiled = Feeder(model).compiled
    model.to(torch.float64)
    assert not compiled.can([])
    model.to(torch.float32)
    assert compiled.can([])
    down = model.layers[0].mlp.down
    down.weight.data = down.weight.data.T.contiguous().T
    assert not compiled.can([])


def test_the_default_type_of_a_tensor_does_not_matter() -> None:
    feeder = Feeder(model_of())
    with torch.inference_mode():
        want = feeder.feed(WAYS["in chunks"])
        torch.set_default_dtype(torch.float16)
        try:
            got = feeder.feed(WAYS["in chunks"])
        finally:
            torch.set_default_dtype(torch.float32)
    assert all(torch.equal(a, b) for a, b in zip(got, want, strict=True))


@pytest.mark.parametrize("count", [2, 3, 4])
def test_the_middle_of_a_prompt_alone(count: int) -> None:
    """Few tokens of which none is read."""
    prompts = [[3 + (5 * i + j) % 200 for j in range(40)] for i in range(2)]
    params = SamplingParams(max_tokens=4, ignore_eos=True, logprobs=0, detokenize=False, seed=4)

    def logprobs(threads_used: int, **settings: Any) -> list[list[float] | None]:
        with threads(threads_used):
            llm = LLM(tiny_model(), config=EngineConfig(max_num_seqs=4, prefix_cache=False, **settings))
            return [output.outputs[0].logprobs for output in llm.generate(prompts, params)]

    assert logprobs(count, max_step_tokens=16) == logprobs(1)


@pytest.mark.parametrize("name", CONFIGS)
def test_a_model_is_compiled_or_runs_as_it_is(name: str) -> None:
    """No part of a model is left out in silence: what is not of the common kind is not compiled."""
    model = models.build(models.parse(reference(name).config.to_dict()))
    cache = KVCache(model.attention_specs(), [4], SIZE, model.dtype, model.device)
    config = model.config
    common = all(
        layer.norms == "before"
        and layer.attention.__class__.__name__ == "Gqa"
        and getattr(layer.attention, "qk_norm", None) != "full"
        and not getattr(layer.attention, "sinks", False)
        and getattr(layer.attention, "softcap", None) is None
        and layer.mlp.__class__.__name__ == "Dense"
        and getattr(layer.mlp, "activation", "silu") == "silu"
        and not getattr(layer.mlp, "bias", False)
        for layer in config.layers
    )
    compiled = CompiledDecoder.of(model, cache)
    assert common or compiled is None


def test_what_hangs_on_a_module_is_not_left_out() -> None:
    model = tiny_model()
    compiled = CompiledDecoder.of(
        model, KVCache(model.attention_specs(), [4], SIZE, model.dtype, model.device)
    )
    assert compiled is not None
    assert compiled.can([])
    attach_lora(model, LoraSpec(r=4))
    assert not compiled.can([])
    detach(model)
    assert compiled.can([])
    observer = model.layers[1].mlp.down.register_forward_pre_hook(lambda module, inputs: None)
    assert not compiled.can([])
    observer.remove()
    assert compiled.can([])
    with use_reference():
        assert not compiled.can([])


def test_the_engine_says_the_same_alone_and_together() -> None:
    """Of a whole engine: tokens and log-probabilities have the same bits in any company."""
    prompts = [[3 + (7 * i + j) % 200 for j in range(3 + 5 * i)] for i in range(9)]
    params = SamplingParams(max_tokens=9, ignore_eos=True, logprobs=0, detokenize=False, seed=4)

    def outputs(**settings: Any) -> list[tuple[list[int], list[float]]]:
        llm = LLM(tiny_model(), config=EngineConfig(**{"max_num_seqs": 16, "prefix_cache": False} | settings))
        done = [output.outputs[0] for output in llm.generate(prompts, params)]
        return [(list(one.token_ids), list(one.logprobs or [])) for one in done]

    with threads(2):
        want = outputs()
        assert outputs(max_num_seqs=1) == want
        assert outputs(max_step_tokens=16) == want
        assert outputs(prefix_cache=True) == want
        assert outputs(speculation="ngram") == want


def test_layers_with_queries_of_two_widths_do_not_fit() -> None:
    feeder = Feeder(model_of())
    decoder = feeder.compiled._decoder
    assert decoder is not None
    first, *others = decoder.layers
    width, hidden = first.weights["q"].shape
    wider = replace(first, weights={**first.weights, "q": torch.zeros(2 * width, hidden)})
    assert DenseDecoder.fits([first, *others], decoder.ends)
    assert not DenseDecoder.fits([wider, *others], decoder.ends)


def test_a_rotation_is_the_same_whenever_it_was_made() -> None:
    spec = RopeSpec(32, 10000.0)
    rows = [SimpleNamespace(end=end, positions=torch.arange(end)) for end in (3, 1025, 5000)]
    late, early = Rotations(spec, torch.float32), Rotations(spec, torch.float32)
    *_, grown = [early(each) for each in rows]  # type: ignore[arg-type]
    for ours, theirs in zip(grown, late(rows[-1]), strict=True):  # type: ignore[arg-type]
        assert torch.equal(ours, theirs)
    cosines, _ = rope_tables(spec, torch.arange(5000), None, torch.float32)
    assert torch.allclose(grown[0][:5000], cosines[:, 0], atol=1e-6)
