"""LoRA against PEFT: logits, gradients and files, both directions."""

import copy
import json
import os
from pathlib import Path
from typing import Any

import peft
import pytest
import torch
from safetensors.torch import load_file, save_file

from rondo.base.errors import Conflict, ModelError
from rondo.models import Decoder, Packed, load
from rondo.models.adapters import (
    LoraSpec,
    adapter_of,
    attach_lora,
    detach,
    load_adapter,
    load_lora,
    merge,
    save_lora,
    trainable,
)
from rondo.models.adapters.lora import linears
from rondo.models.files.mapping import to_hf
from support.families import CONFIGS, VOCAB, reference

# PEFT warns where a pattern names a module that one of the models here does not have.
pytestmark = pytest.mark.filterwarnings("ignore:The following .*_pattern keys did not match")
RELATIVE = 1e-4
TOKENS = torch.randint(3, VOCAB, (24,), generator=torch.Generator().manual_seed(1))
ATTENTION = ["q_proj", "v_proj", "o_proj"]


def lora_config(**more: Any) -> peft.LoraConfig:
    return peft.LoraConfig(
        **{"r": 4, "lora_alpha": 6, "task_type": "CAUSAL_LM", "target_modules": "all-linear"} | more
    )


def theirs_with_lora(name: str, folder: Path, **more: Any) -> Any:
    """A PEFT model whose B is not zero, saved with its base: `folder/base`, `folder/adapter`."""
    base = reference(name)
    base.save_pretrained(folder / "base")
    torch.manual_seed(3)
    model = peft.get_peft_model(base, lora_config(**more)).eval()
    with torch.no_grad():
        for key, parameter in model.named_parameters():
            if "lora_B" in key:
                parameter.normal_(0.0, 0.2)
    model.save_pretrained(folder / "adapter", save_embedding_layers=False)
    return model


@torch.no_grad()
def logits_of(model: Decoder) -> torch.Tensor:
    attend = Packed([0, len(TOKENS)])
    return model(TOKENS, attend.positions, attend)


@torch.no_grad()
def their_logits(model: Any) -> torch.Tensor:
    return model(TOKENS[None], use_cache=False).logits[0]


def assert_close(ours: torch.Tensor, theirs: torch.Tensor) -> None:
    assert (ours - theirs).abs().max() <= RELATIVE * theirs.abs().max()


def loss(logits: torch.Tensor) -> torch.Tensor:
    return logits.float().log_softmax(-1)[:, 5].sum()


MIXTURES: dict[str, Any] = {
    "qwen3-moe": ATTENTION,
    "mixtral": ATTENTION,
    "gpt-oss": ATTENTION,
    "deepseek-v2-lite": ["q_proj", "kv_a_proj_with_mqa", "kv_b_proj", "o_proj"],
    "deepseek-v2": r".*self_attn\.\w+_proj(_with_mqa)?",
    "deepseek-v3": ["q_a_proj", "q_b_proj", "kv_b_proj"],
}
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    **{name: (name, {}) for name in CONFIGS if name not in MIXTURES},
    **{name: (name, {"target_modules": targets}) for name, targets in MIXTURES.items()},
    "a list": ("llama3", {"target_modules": ATTENTION}),
    "a full name": ("llama3", {"target_modules": ["model.layers.1.self_attn.q_proj", "up_proj"]}),
    "a regex": ("llama3", {"target_modules": r"model\.layers\.[02]\.mlp\.(up|down)_proj"}),
    "excluded": ("llama3", {"exclude_modules": ["o_proj", "layers.1.mlp.up_proj"]}),
    "rank-stabilised": ("qwen2", {"use_rslora": True}),
    "ranks by pattern": (
        "phi3",
        {
            "rank_pattern": {"qkv_proj": 3, "layers.1.mlp.down_proj": 5},
            "alpha_pattern": {r"layers\.\d+.self_attn.*": 9},
        },
    ),
    "dropout": ("llama2", {"lora_dropout": 0.3}),
}


@pytest.mark.parametrize("variant", VARIANTS)
def test_peft_adapter_here(variant: str, tmp_path: Path) -> None:
    """Logits with it and merged equal PEFT's; written again, both files are the same bytes."""
    name, settings = VARIANTS[variant]
    theirs = theirs_with_lora(name, tmp_path, **settings)
    expected = their_logits(theirs)
    ours = load(tmp_path / "base")
    plain = logits_of(ours)
    load_adapter(ours, tmp_path / "adapter")
    assert_close(logits_of(ours), expected)
    save_lora(ours, tmp_path / "again")
    for file in ("adapter_config.json", "adapter_model.safetensors"):
        assert (tmp_path / "again" / file).read_bytes() == (tmp_path / "adapter" / file).read_bytes()
    detach(ours)
    assert torch.equal(logits_of(ours), plain)
    load_lora(ours, tmp_path / "adapter")
    merge(ours)
    assert_close(logits_of(ours), expected)
    assert adapter_of(ours) is None


@pytest.mark.parametrize(
    ("name", "targets"),
    [
        ("llama3", ATTENTION),
        ("qwen2", "all-linear"),
        ("phi3", "all-linear"),
        ("gemma2", r".*\.(q|k)_proj"),
        ("deepseek-v3", MIXTURES["deepseek-v3"]),
        ("qwen3-moe", ATTENTION),
    ],
)
def test_our_adapter_in_peft(name: str, targets: Any, tmp_path: Path) -> None:
    base = reference(name)
    base.save_pretrained(tmp_path / "base")
    ours = load(tmp_path / "base")
    plain = logits_of(ours)
    targets = tuple(targets) if isinstance(targets, list) else targets
    attach_lora(ours, LoraSpec(r=3, alpha=5, targets=targets, rank_pattern={"o_proj": 2}))
    assert torch.equal(logits_of(ours), plain), "a fresh adapter changes nothing"
    with torch.no_grad():
        for parameter in trainable(ours):
            parameter.normal_(0.0, 0.1, generator=torch.Generator().manual_seed(0))
    save_lora(ours, tmp_path / "adapter")
    theirs = peft.PeftModel.from_pretrained(base, tmp_path / "adapter").eval()
    assert_close(logits_of(ours), their_logits(theirs))
    # Gemma 2 caps its scores, which only the eager attention of transformers does.
    alone = peft.AutoPeftModelForCausalLM.from_pretrained(
        tmp_path / "adapter", attn_implementation="eager"
    ).eval()
    assert_close(logits_of(ours), their_logits(alone))
    theirs.save_pretrained(tmp_path / "again")
    written, again = (
        load_file(tmp_path / folder / "adapter_model.safetensors") for folder in ("adapter", "again")
    )
    assert written.keys() == again.keys()
    assert all(torch.equal(written[key], again[key]) for key in written)


def test_others_may_read_an_adapter(tmp_path: Path) -> None:
    reference("llama2").save_pretrained(tmp_path / "base")
    ours = load(tmp_path / "base")
    attach_lora(ours, LoraSpec(r=2))
    before = os.umask(0o022)
    try:
        save_lora(ours, tmp_path / "adapter")
    finally:
        os.umask(before)
    assert {oct(file.stat().st_mode & 0o777) for file in (tmp_path / "adapter").iterdir()} == {"0o644"}


def test_gradients_equal_pefts_and_the_base_stays_frozen(tmp_path: Path) -> None:
    theirs = theirs_with_lora("phi3", tmp_path)
    loss(theirs(TOKENS[None], use_cache=False).logits[0]).backward()
    ours = load(tmp_path / "base")
    load_lora(ours, tmp_path / "adapter", train=True)
    attend = Packed([0, len(TOKENS)])
    loss(ours(TOKENS, attend.positions, attend)).backward()
    grads = {
        name: parameter.grad for name, parameter in ours.named_parameters() if parameter.grad is not None
    }
    assert all(".adapter." in name for name in grads)
    assert len(grads) == len(trainable(ours))
    expected = {
        name: parameter.grad for name, parameter in theirs.named_parameters() if parameter.requires_grad
    }
    layer = "base_model.model.model.layers.1"
    pairs = {
        f"{layer}.self_attn.qkv_proj.lora_A.default.weight": grads["layers.1.attention.q.adapter.a"],
        f"{layer}.self_attn.qkv_proj.lora_B.default.weight": torch.cat(
            [grads[f"layers.1.attention.{x}.adapter.b"] for x in "qkv"]
        ),
        f"{layer}.mlp.down_proj.lora_B.default.weight": grads["layers.1.mlp.down.adapter.b"],
    }
    for name, grad in pairs.items():
        assert_close(grad, expected[name])


def test_base_keeps_its_names_and_comes_back_as_it_was(tmp_path: Path) -> None:
    reference("deepseek-v3").save_pretrained(tmp_path / "base")
    model = load(tmp_path / "base")
    before = {
        name: (tensor.clone(), model.get_parameter(name).requires_grad)
        for name, tensor in model.named_parameters()
    }
    exported = dict(to_hf(model))
    attach_lora(model, LoraSpec(targets=("o_proj",)))
    assert {name for name, _ in model.named_parameters() if ".adapter." not in name} == before.keys()
    assert dict(to_hf(model)).keys() == exported.keys()
    assert all(torch.equal(tensor, exported[name]) for name, tensor in to_hf(model))
    detach(model)
    after = {name: (tensor, tensor.requires_grad) for name, tensor in model.named_parameters()}
    assert after.keys() == before.keys()
    assert all(torch.equal(after[n][0], before[n][0]) and after[n][1] == before[n][1] for n in before)


def test_copy_has_an_adapter_of_its_own(tmp_path: Path) -> None:
    theirs_with_lora("llama2", tmp_path)
    model = load(tmp_path / "base")
    plain = logits_of(model)
    load_lora(model, tmp_path / "adapter")
    adapted = logits_of(model)
    twin = copy.deepcopy(model)
    detach(model)
    assert torch.equal(logits_of(model), plain)
    assert torch.equal(logits_of(twin), adapted)
    detach(twin)
    assert torch.equal(logits_of(twin), plain)


def test_half_precision_base_keeps_its_dtype(tmp_path: Path) -> None:
    theirs_with_lora("llama2", tmp_path)
    model = load(tmp_path / "base", dtype=torch.bfloat16)
    load_lora(model, tmp_path / "adapter")
    adapted = logits_of(model)
    assert adapted.dtype == torch.bfloat16
    merge(model)
    assert model.layers[0].attention.q.weight.dtype == torch.bfloat16
    assert (logits_of(model) - adapted).abs().max() <= 0.05 * adapted.abs().max()


# Adapters that cannot be used.


def edit_config(folder: Path, **changes: Any) -> None:
    path = folder / "adapter_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def edit_tensors(folder: Path, change: Any) -> None:
    path = folder / "adapter_model.safetensors"
    tensors = load_file(path)
    change(tensors)
    save_file(tensors, path)


def first_to_half(tensors: dict[str, torch.Tensor]) -> None:
    key = next(iter(tensors))
    tensors[key] = tensors[key][:1].contiguous()


Q = "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight"
BAD: dict[str, tuple[Any, str]] = {
    "rank": (
        lambda d: edit_config(d, r=5),
        r"of the wrong shape: .*lora_A.weight is \[4, 64\], should be \[5, 64\]",
    ),
    "missing tensors": (lambda d: edit_tensors(d, lambda t: t.pop(Q)), f"1 missing: {Q}"),
    "extra tensors": (
        lambda d: edit_tensors(d, lambda t: t.update({"more": torch.ones(2)})),
        "1 unexpected: more",
    ),
    "shape": (lambda d: edit_tensors(d, first_to_half), "1 of the wrong shape"),
    "target": (
        lambda d: edit_config(d, target_modules=["q_proj", "query_key_value"]),
        "no linear module of the model is 'query_key_value'; there are down_proj, gate_proj",
    ),
    "regex": (lambda d: edit_config(d, target_modules="q_(proj"), "not a regular expression"),
    "regex without match": (lambda d: edit_config(d, target_modules="q_proj"), "'q_proj'"),
    "no targets": (lambda d: edit_config(d, target_modules=None), "target_modules is None"),
    "lm_head": (lambda d: edit_config(d, target_modules=["q_proj", "lm_head"]), "LoRA over lm_head"),
    "modules_to_save": (
        lambda d: edit_config(d, modules_to_save=["lm_head"]),
        "modules_to_save is not supported",
    ),
    "DoRA": (lambda d: edit_config(d, use_dora=True), "use_dora is not supported"),
    "bias": (lambda d: edit_config(d, bias="all"), "bias is 'all'"),
    "PiSSA": (lambda d: edit_config(d, init_lora_weights="pissa"), "init_lora_weights is 'pissa'"),
    "layers": (lambda d: edit_config(d, layers_to_transform=[1]), "layers_to_transform is not supported"),
    "kind": (lambda d: edit_config(d, peft_type="IA3"), "peft_type 'IA3' is not supported; supported: LORA"),
    "rank's type": (lambda d: edit_config(d, r="8"), "r is '8'; ranks should be whole numbers"),
    "alpha's type": (lambda d: edit_config(d, lora_alpha=None), "lora_alpha is None"),
    "pattern's type": (lambda d: edit_config(d, rank_pattern={"q_proj": "2"}), "rank_pattern is"),
    "pattern": (lambda d: edit_config(d, rank_pattern={"(": 4}), r"rank_pattern is .* not a regular expr"),
    "alpha's pattern": (lambda d: edit_config(d, alpha_pattern={"[": 4}), r"alpha_pattern is .* not a regul"),
    "no config": (lambda d: (d / "adapter_config.json").unlink(), "has no adapter_config.json"),
    "broken config": (
        lambda d: (d / "adapter_config.json").write_text("{"),
        "adapter_config.json is not valid JSON",
    ),
    "deep config": (
        lambda d: (d / "adapter_config.json").write_text("[" * 100_000),
        "adapter_config.json is not valid JSON",
    ),
    "no tensors": (lambda d: (d / "adapter_model.safetensors").unlink(), "has no adapter_model.safetensors"),
    "pickle": (
        lambda d: (d / "adapter_model.safetensors").rename(d / "adapter_model.bin"),
        "adapter_model.bin is a pickle",
    ),
    "truncated": (
        lambda d: (d / "adapter_model.safetensors").write_bytes(
            (d / "adapter_model.safetensors").read_bytes()[:-9]
        ),
        "is truncated",
    ),
}


@pytest.fixture(scope="module")
def peft_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("peft")
    theirs_with_lora("llama2", folder, target_modules=["q_proj", "down_proj"])
    return folder


@pytest.mark.parametrize("case", BAD)
def test_bad_adapter(case: str, peft_folder: Path, tmp_path: Path) -> None:
    spoil, message = BAD[case]
    folder = tmp_path / "adapter"
    folder.mkdir()
    for file in (peft_folder / "adapter").iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    spoil(folder)
    model = load(peft_folder / "base")
    plain = logits_of(model)
    with pytest.raises(ModelError, match=message) as caught:
        load_adapter(model, folder)
    assert "\n" not in str(caught.value)
    assert adapter_of(model) is None
    assert torch.equal(logits_of(model), plain)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"r": 0}, "r is 0; ranks should be whole numbers"),
        ({"r": True}, "r is True"),
        ({"r": 2.0}, "r is 2.0"),
        ({"alpha": "16"}, "lora_alpha is '16'"),
        ({"alpha": float("nan")}, "lora_alpha is nan"),
        ({"dropout": 2}, "lora_dropout is 2"),
        ({"targets": None}, "target_modules is None"),
        ({"targets": ("q_proj", 3)}, "target_modules is"),
        ({"excluded": 3}, "exclude_modules is 3"),
        ({"rank_pattern": {"q_proj": 0}}, "rank_pattern is .* positive numbers"),
        ({"rank_pattern": {"q_proj": 1.5}}, "rank_pattern is .* whole numbers"),
        ({"rank_pattern": {"(": 4}}, "rank_pattern is .* not a regular expression"),
        ({"rank_pattern": {3: 4}}, "rank_pattern is"),
        ({"alpha_pattern": ["q_proj"]}, "alpha_pattern is"),
        ({"alpha_pattern": {"[": 4}}, "alpha_pattern is .* not a regular expression"),
    ],
    ids=str,
)
def test_bad_spec(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelError, match=message):
        LoraSpec(**wrong)


def test_wrong_base(peft_folder: Path, tmp_path: Path) -> None:
    reference("llama-biases").save_pretrained(tmp_path / "base")
    with pytest.raises(
        ModelError, match=r"does not fit its adapter_config.json and this base model.*wrong shape"
    ):
        load_lora(load(tmp_path / "base"), peft_folder / "adapter")


def test_dropout_is_for_serving_only(tmp_path: Path) -> None:
    theirs_with_lora("llama2", tmp_path, lora_dropout=0.1)
    model = load(tmp_path / "base")
    with pytest.raises(ModelError, match=r"lora_dropout 0.1") as caught:
        load_lora(model, tmp_path / "adapter", train=True)
    assert caught.value.param == "lora_dropout"
    with pytest.raises(ModelError, match="lora_dropout"):
        attach_lora(model, LoraSpec(dropout=0.1))
    assert load_lora(model, tmp_path / "adapter") is adapter_of(model)
    assert not trainable(model)


def test_one_adapter_at_a_time(peft_folder: Path, tmp_path: Path) -> None:
    model = load(peft_folder / "base")
    for verb in (detach, merge, lambda m: save_lora(m, tmp_path / "none")):
        with pytest.raises(ModelError, match="has no adapter"):
            verb(model)
    attach_lora(model, LoraSpec())
    with pytest.raises(ModelError, match="has an adapter already"):
        attach_lora(model, LoraSpec())
    save_lora(model, tmp_path / "one")
    with pytest.raises(Conflict):
        save_lora(model, tmp_path / "one")


def test_experts_are_refused(tmp_path: Path) -> None:
    theirs_with_lora("qwen3-moe", tmp_path, target_modules=["q_proj", "gate_proj", "up_proj"])
    model = load(tmp_path / "base")
    with pytest.raises(ModelError, match="target_parameters is not supported"):
        load_lora(model, tmp_path / "adapter")
    with pytest.raises(ModelError, match="no linear module of the model is 'gate_proj'; there are k_proj"):
        attach_lora(model, LoraSpec(targets=("q_proj", "gate_proj")))
    with pytest.raises(ModelError, match="experts of a mixture is not supported"):
        attach_lora(model, LoraSpec())


def test_linears_are_hugging_faces(peft_folder: Path) -> None:
    model = load(peft_folder / "base")
    theirs = {
        name for name, module in reference("llama2").named_modules() if isinstance(module, torch.nn.Linear)
    }
    assert set(linears(model)) == theirs
