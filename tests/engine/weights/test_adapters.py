"""Many adapters in one batch, beside PEFT's own models and beside each adapter merged and alone."""

from pathlib import Path
from typing import Any

import peft
import pytest
import torch
from transformers import AutoModelForCausalLM

from rondo.client.types import RequestOutput, SamplingParams
from rondo.engine.config import EngineConfig
from rondo.engine.entrypoints.llm import LLM
from rondo.models import Decoder, load, save
from rondo.models.adapters import (
    TokenformerSpec,
    attach_tokenformer,
    detach,
    load_adapter,
    merge,
    save_adapter,
    trainable,
)
from support.families import VOCAB, reference

RELATIVE = 1e-4
GREEDY = SamplingParams(max_tokens=6, temperature=0.0, ignore_eos=True, logprobs=0, detokenize=False)
LORAS: dict[str, dict[str, Any]] = {
    "all": {"r": 4},
    "attention": {"r": 2, "target_modules": ["q_proj", "v_proj"]},
    "wide": {"r": 13, "use_rslora": True, "target_modules": ["o_proj", "up_proj"]},
    "ranks": {"r": 3, "rank_pattern": {"down_proj": 7}, "alpha_pattern": {"q_proj": 3}},
}


def prompt(length: int, seed: int) -> list[int]:
    return torch.randint(3, VOCAB, (length,), generator=torch.Generator().manual_seed(seed)).tolist()


def same_as_peft(
    folder: Path, names: list[str | None], prompts: list[list[int]], outputs: list[RequestOutput]
) -> None:
    """Greedy answers and their log-probabilities are PEFT's, each with the adapter of its name over `base`."""
    for adapter in dict.fromkeys(names):
        theirs: Any = AutoModelForCausalLM.from_pretrained(
            folder / "base", dtype=torch.float32, attn_implementation="eager"
        )
        if adapter is not None:
            theirs = peft.PeftModel.from_pretrained(theirs, folder / "adapters" / adapter)
        for i in (i for i, one in enumerate(names) if one == adapter):
            sample = outputs[i].outputs[0]
            tokens = torch.tensor([prompts[i] + sample.token_ids])
            scores = theirs.eval()(tokens, use_cache=False).logits[0, len(prompts[i]) - 1 : -1]
            assert scores.argmax(-1).tolist() == sample.token_ids
            chosen = scores.log_softmax(-1).gather(1, tokens[0, len(prompts[i]) :, None])[:, 0]
            assert (chosen - torch.tensor(sample.logprobs)).abs().max() <= RELATIVE * scores.abs().max()


def write_loras(folder: Path, name: str, loras: dict[str, dict[str, Any]]) -> None:
    """PEFT's own adapters in `folder/<adapter>`, B not zero."""
    for seed, (adapter, settings) in enumerate(loras.items()):
        config = {"lora_alpha": 6, "task_type": "CAUSAL_LM", "target_modules": "all-linear"} | settings
        torch.manual_seed(seed)
        model = peft.get_peft_model(reference(name), peft.LoraConfig(**config))
        with torch.no_grad():
            for key, parameter in model.named_parameters():
                if "lora_B" in key:
                    parameter.normal_(0.0, 0.2)
        model.save_pretrained(folder / adapter, save_embedding_layers=False)


def write_tokenformer(folder: Path, model: Decoder, seed: int, heads: int) -> None:
    attach_tokenformer(model, TokenformerSpec(r=3, heads=heads), seed=seed)
    with torch.no_grad():
        for parameter in trainable(model):
            parameter.normal_(0.0, 0.2, generator=torch.Generator().manual_seed(seed))
    save_adapter(model, folder)
    detach(model)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("llama")
    reference("llama3").save_pretrained(folder / "base")
    write_loras(folder / "adapters", "llama3", LORAS)
    base = load(folder / "base")
    for seed, heads in enumerate((2, 4, 4)):
        write_tokenformer(folder / "adapters" / f"tokenformer{seed}", base, seed, heads)
    return folder


def engine(folder: Path, **settings: Any) -> LLM:
    settings = {"adapters_dir": str(folder / "adapters"), "block_size": 4, "max_num_seqs": 32} | settings
    return LLM(load(folder / "base"), config=EngineConfig(**settings))


ALL = [None, *LORAS, "tokenformer0", "tokenformer1", "tokenformer2"]


def alone(folder: Path, adapter: str | None, prompts: list[list[int]]) -> list[list[int]]:
    """The engine running that adapter merged into the base (Tokenformer: attached), and nothing else."""
    model = load(folder / "base")
    if adapter is not None:
        load_adapter(model, folder / "adapters" / adapter)
        if adapter in LORAS:
            merge(model)
    return [o.outputs[0].token_ids for o in LLM(model).generate(prompts, GREEDY)]


def test_a_mixed_batch_is_each_adapter_alone(folder: Path) -> None:
    names = [*ALL, *reversed(ALL), *ALL]
    prompts = [prompt(2 + 3 * i, i) for i in range(len(names))]
    mixed = engine(folder, max_step_tokens=64).generate(prompts, GREEDY, adapter=names)
    for adapter in ALL:
        own = [i for i, name in enumerate(names) if name == adapter]
        assert [mixed[i].outputs[0].token_ids for i in own] == alone(
            folder, adapter, [prompts[i] for i in own]
        )


@pytest.mark.parametrize("name", ["llama3", "phi3", "gemma2", "deepseek-v3", "qwen3-moe"])
@torch.no_grad()
def test_a_mixed_batch_is_peft(name: str, tmp_path: Path) -> None:
    """Each request's tokens and their log-probabilities are those of PEFT's model with its adapter."""
    targets = {
        "deepseek-v3": ["q_a_proj", "q_b_proj", "kv_b_proj", "o_proj"],
        "qwen3-moe": ["q_proj", "v_proj", "o_proj"],
    }.get(name, "all-linear")
    loras = {f"lora{i}": {"r": 2 + i, "target_modules": targets} for i in range(3)}
    reference(name).save_pretrained(tmp_path / "base")
    write_loras(tmp_path / "adapters", name, loras)
    names = [*loras, None, *loras, None]
    prompts = [prompt(5 + 6 * i, i) for i in range(len(names))]
    outputs = engine(tmp_path).generate(prompts, GREEDY, adapter=names)
    same_as_peft(tmp_path, names, prompts, outputs)


@pytest.mark.parametrize("third", ["ranks", "tokenformer1"])
def test_base_rows_do_not_know_of_adapters_beside_them(folder: Path, third: str) -> None:
    """The logits of requests without an adapter have the same bits beside LoRA. A Tokenformer makes the step run
    operation by operation, where products round by the number of rows."""
    scores: dict[bool, torch.Tensor] = {}
    for mixed in (False, True):
        llm = engine(folder)
        forward = llm.core.runner.forward

        def keep(step: Any, mixed: bool = mixed, forward: Any = forward) -> torch.Tensor:
            scores[mixed] = forward(step)
            return scores[mixed]

        llm.core.runner.forward = keep
        names = [name if mixed else None for name in (None, "all", None, "wide", third, None)]
        llm.generate(
            [prompt(3 + 9 * i, i) for i in range(6)],
            GREEDY.with_(max_tokens=1, ignore_eos=True),
            adapter=names,
        )
    base, others = [0, 2, 5], [1, 3, 4]
    assert torch.allclose(scores[True][base], scores[False][base], rtol=1e-5, atol=1e-5)
    assert third != "ranks" or torch.equal(scores[True][base], scores[False][base])
    for row in others:
        assert not torch.allclose(scores[True][row], scores[False][row], atol=1e-3)


def test_neighbours_do_not_matter(folder: Path) -> None:
    asked = prompt(9, 3)
    sampled = SamplingParams(max_tokens=12, seed=5, ignore_eos=True, detokenize=False)
    [want] = engine(folder).generate([asked], sampled, adapter="ranks")
    for neighbours in (["ranks"], [None, "all", "tokenformer2"], ["wide", "attention"] * 3):
        names = [*neighbours, "ranks", *neighbours]
        prompts = [prompt(4 + 3 * i, 50 + i) for i in range(len(names))]
        prompts[len(neighbours)] = asked
        outputs = engine(folder).generate(prompts, sampled, adapter=names)
        assert outputs[len(neighbours)].outputs[0].token_ids == want.outputs[0].token_ids


def test_samples_of_one_prompt_share_their_adapter(folder: Path) -> None:
    sampled = SamplingParams(max_tokens=8, n=4, seed=1, ignore_eos=True, detokenize=False)
    [mixed, _] = engine(folder).generate([prompt(9, 1), prompt(9, 1)], sampled, adapter=["all", None])
    model = load(folder / "base")
    load_adapter(model, folder / "adapters" / "all")
    merge(model)
    [merged] = LLM(model).generate([prompt(9, 1)], sampled)
    assert [s.token_ids for s in mixed.outputs] == [s.token_ids for s in merged.outputs]
    assert len({tuple(s.token_ids) for s in mixed.outputs}) > 1


def test_half_precision_base(folder: Path) -> None:
    """A bf16 base computes with adapters what the same adapters compute when they are attached."""
    for name in ("all", "tokenformer0"):
        model = load(folder / "base", dtype=torch.bfloat16)
        llm = LLM(model, config=EngineConfig(adapters_dir=str(folder / "adapters")))
        outputs = llm.generate([prompt(9, 1), prompt(40, 2)], GREEDY, adapter=[name, name])
        load_adapter(model, folder / "adapters" / name)
        attached = LLM(model).generate([prompt(9, 1), prompt(40, 2)], GREEDY)
        assert [o.outputs[0].token_ids for o in outputs] == [o.outputs[0].token_ids for o in attached]


def test_prefixes_are_an_adapters_own(folder: Path, tmp_path: Path) -> None:
    """Nobody finds the blocks of another adapter or of another version of it; the same content is found again."""
    llm = engine(folder, adapters_dir=None, max_loaded_adapters=1)
    asked = [prompt(20, 1)]

    def cached(adapter: str | None) -> int:
        return llm.generate(asked, GREEDY, adapter=adapter)[0].cached_tokens

    llm.load_adapter("x", folder / "adapters" / "all")
    assert [cached("x"), cached(None), cached("x"), cached(None)] == [0, 0, 16, 16]
    llm.load_adapter("x", folder / "adapters" / "wide", replace=True)
    assert [cached("x"), cached("x")] == [0, 16]
    llm.load_adapter("other", folder / "adapters" / "attention")
    assert [cached("other"), cached("x")] == [0, 16]
    llm.load_adapter("x", folder / "adapters" / "all", replace=True)
    assert cached("x") == 16
    llm.start_weight_update()
    llm.finish_weight_update(1)
    assert [cached("x"), cached("x"), cached(None)] == [0, 16, 0]


def test_adapters_stay_valid_over_new_base_weights(folder: Path, tmp_path: Path) -> None:
    llm = engine(folder)
    asked, names = [prompt(9, 1), prompt(30, 2)], ["all", "tokenformer1"]
    before = llm.generate(asked, GREEDY, adapter=names)
    llm.start_weight_update()
    with torch.no_grad():
        for parameter in llm.core.model.parameters():
            parameter.mul_(1.1)
    llm.finish_weight_update(1)
    after = llm.generate(asked, GREEDY, adapter=names)
    save(llm.core.model, tmp_path / "base")
    (tmp_path / "adapters").symlink_to(folder / "adapters")
    fresh = engine(tmp_path).generate(asked, GREEDY, adapter=names)
    assert [o.outputs[0].token_ids for o in after] == [o.outputs[0].token_ids for o in fresh]
    assert before[0].outputs[0].logprobs != after[0].outputs[0].logprobs


@pytest.mark.parametrize("speculation", ["ngram", "draft"])
def test_proposals_are_checked_with_the_adapter(folder: Path, speculation: str) -> None:
    names = [*ALL, *ALL]
    prompts = [prompt(4, i) * (2 + i % 4) for i in range(len(names))]
    params = GREEDY.with_(max_tokens=16)
    settings = {"speculation": speculation, "speculation_adaptive": False}
    if speculation == "draft":
        settings["draft_model"] = str(folder / "base")
    llm = engine(folder, **settings)
    outputs = llm.generate(prompts, params, adapter=names)
    plain = engine(folder).generate(prompts, params, adapter=names)
    assert [o.outputs[0].token_ids for o in outputs] == [o.outputs[0].token_ids for o in plain]
    assert llm.core.speculation.counters.accepted > 0


@pytest.mark.parametrize("many", [1, 10_000])
def test_few_rows_and_many_are_the_same(folder: Path, many: int) -> None:
    """Whether an adapter is applied by itself or together with others."""
    names = [*ALL, *ALL]
    prompts = [prompt(3 + 5 * i, i) for i in range(len(names))]
    want = engine(folder).generate(prompts, GREEDY, adapter=names)
    llm = engine(folder)
    llm.core.adapters.reader.sites.many_rows = many
    got = llm.generate(prompts, GREEDY, adapter=names)
    assert [o.outputs[0].token_ids for o in got] == [o.outputs[0].token_ids for o in want]
