"""GGUF files: every family survives the way there and back bit by bit, tensors have the numbers that llama.cpp's own
package reads, and what cannot be read or written is an error with a remedy."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch

from rondo import models
from rondo.base.errors import InvalidRequest, ModelError, NotFound, RondoError
from rondo.base.storage.gguf import read_gguf
from rondo.models import Decoder, Packed
from rondo.models.files.gguf.blocks import DECODERS, ENCODERS, TYPES, decoded, encoded
from rondo.models.files.gguf.export import export_gguf
from rondo.models.files.mapping import to_hf
from rondo.models.quantized.folder import quantize_folder
from rondo.models.quantized.parts import QuantizedExperts, QuantizedLinear
from rondo.models.quantized.quantize.making import QuantizationRecipe
from rondo.models.store import facts, fingerprint, import_model, list_models, name_of, resolve, summary
from rondo.text.tokenizer import Tokenizer
from support.gguf_files import write_metadata, write_qwen3
from support.home import own_home
from support.tiny import (
    TINY_BIASES,
    TINY_GEMMA,
    TINY_GPT_OSS,
    TINY_MOE,
    TINY_OLMO,
    tiny_config,
    tiny_model,
    tiny_tokenizer,
)

WIDE = {"hidden_size": 64, "intermediate_size": 96, "head_dim": 16}
GEMMA2 = TINY_GEMMA | {"query_pre_attn_scalar": 16, "num_hidden_layers": 3}
GEMMA3 = {
    "architectures": ["Gemma3ForCausalLM"],
    "model_type": "gemma3_text",
    "sliding_window": 8,
    "query_pre_attn_scalar": 16,
    "hidden_activation": "gelu_pytorch_tanh",
    "num_hidden_layers": 7,
    "rope_theta": 1e6,
    "rope_scaling": {"rope_type": "linear", "factor": 8.0},
}
MIXTRAL = {"model_type": "mixtral", "num_local_experts": 4, "num_experts_per_tok": 2}
LLAMA = {"model_type": "llama", "tie_word_embeddings": False}
ROPE3 = {"rope_type": "llama3", "low_freq_factor": 1.0, "high_freq_factor": 4.0}
LONGROPE = {
    "rope_type": "longrope",
    "short_factor": [1.0 + 0.1 * i for i in range(6)],
    "long_factor": [2.0 + 0.3 * i for i in range(6)],
}
FAMILIES: dict[str, dict[str, Any]] = {
    "llama": LLAMA,
    "llama with biases": TINY_BIASES,
    "llama 3": LLAMA | {"rope_scaling": ROPE3 | {"factor": 32.0, "original_max_position_embeddings": 8192}},
    "llama, other bands": LLAMA
    | {"rope_scaling": ROPE3 | {"factor": 3.0, "original_max_position_embeddings": 64}},
    "llama, linear": LLAMA | {"rope_scaling": {"rope_type": "linear", "factor": 3}},
    "mistral": LLAMA | {"model_type": "mistral", "sliding_window": 7},
    "mixtral": LLAMA | MIXTRAL,
    "qwen2": {"model_type": "qwen2"},
    "qwen3": {},
    "qwen3, yarn": {
        "rope_scaling": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}
    },
    "qwen3-moe": TINY_MOE | {"mlp_only_layers": [1]},
    "smollm3": {"model_type": "smollm3", "num_hidden_layers": 5},
    "gemma2": GEMMA2,
    "gemma3": GEMMA3,
    "phi3": LLAMA | {"model_type": "phi3"},
    "phi3, longrope": LLAMA
    | {
        "model_type": "phi3",
        "rope_scaling": LONGROPE,
        "partial_rotary_factor": 0.75,
        "original_max_position_embeddings": 64,
    },
    "olmo2": TINY_OLMO,
}
SMALL_GEMMA = 2.0**-15
"""Gemma's norms are stored plus one in fp32, which rounds smaller numbers."""


def made(folder: Path, dtype: torch.dtype = torch.bfloat16, **changes: Any) -> Decoder:
    """A model with nothing at its initial value, saved with its tokenizer."""
    model = tiny_model(**WIDE | changes)
    source = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=source) * 0.1)
            parameter[parameter.abs() < SMALL_GEMMA] = 0
    model = model.to(dtype)
    models.save(model, folder)
    tiny_tokenizer().save(folder)
    return model


def logits(model: Decoder, length: int = 40) -> torch.Tensor:
    tokens = torch.arange(length) * 7 % 300
    packed = Packed([0, length])
    with torch.no_grad():
        return model(tokens, packed.positions, packed).float()


@pytest.mark.parametrize("family", FAMILIES)
def test_there_and_back(family: str, tmp_path: Path) -> None:
    model = made(tmp_path / "model", **FAMILIES[family])
    file = export_gguf(tmp_path / "model", tmp_path / "file.gguf")
    read = models.load(file)
    assert read.config.family == model.config.family
    parameters = dict(read.named_parameters())
    for name, parameter in model.named_parameters():
        assert parameters[name].dtype == torch.bfloat16
        assert torch.equal(parameters[name], parameter), name
    torch.testing.assert_close(logits(read), logits(model), rtol=0, atol=0 if "bands" not in family else 0.1)


@pytest.mark.parametrize("type_name", DECODERS)
def test_numbers_of_every_type(type_name: str) -> None:
    block = TYPES[type_name]
    source = np.random.default_rng(0)
    raw = source.integers(0, 256, (6, 512 // block.numbers * block.size), dtype=np.uint8)
    with np.errstate(all="ignore"):
        expected = gguf.quants.dequantize(raw, gguf.GGMLQuantizationType[type_name])
    assert np.array_equal(decoded(torch.from_numpy(raw), type_name).numpy(), expected, equal_nan=True)


@pytest.mark.parametrize("type_name", ENCODERS)
def test_quantization_is_that_of_ggml(type_name: str) -> None:
    numbers = np.random.default_rng(1).standard_normal((9, 256)).astype(np.float32)
    numbers[0], numbers[1, :32] = 0, 0
    expected = gguf.quants.quantize(numbers, gguf.GGMLQuantizationType[type_name])
    assert np.array_equal(encoded(torch.from_numpy(numbers), type_name).numpy(), expected)


TALL = {"hidden_size": 256, "intermediate_size": 512, "head_dim": 64, "num_attention_heads": 4}
MIXES: dict[str, tuple[dict[str, str], str]] = {
    "F16": ({}, "F16"),
    "BF16": ({}, "BF16"),
    "F32": ({}, "F32"),
    "Q8_0": ({}, "Q8_0"),
    "Q4_0": ({"token_embd": "Q6_K", "ffn_down": "Q4_1"}, "Q4_0"),
    "Q4_K_M": ({"token_embd": "Q6_K", "attn_v": "Q6_K", "ffn_down": "Q5_K"}, "Q4_K"),
    "Q4_K_M with odd rows": ({"ffn_down": "Q5_1", "attn_v": "Q8_0"}, "Q5_0"),
}


@pytest.mark.parametrize("mix", MIXES)
def test_files_of_the_gguf_package(mix: str, tmp_path: Path) -> None:
    config = tiny_config(**TALL)
    tensors = list(to_hf(models.new(config, seed=5)))
    expected = write_qwen3(tmp_path / "m.gguf", config, tensors, *MIXES[mix])
    read = dict(to_hf(models.load(tmp_path / "m.gguf", dtype=torch.float32)))
    assert set(read) == set(expected)
    for name, tensor in expected.items():
        assert torch.equal(read[name], tensor), name
    own = models.load(tmp_path / "m.gguf")
    assert own.dtype == {"F16": torch.float16, "F32": torch.float32}.get(mix, torch.bfloat16)


def test_plain_tensors_are_mapped(tmp_path: Path) -> None:
    made(tmp_path / "model")
    file = export_gguf(tmp_path / "model", tmp_path / "file.gguf")
    weight = models.load(file).embed.weight
    assert weight.untyped_storage().nbytes() == file.stat().st_size
    before = file.read_bytes()
    with torch.no_grad():
        weight.zero_()
    assert file.read_bytes() == before


@pytest.mark.parametrize("type_name", ["Q8_0", "Q4_0"])
@pytest.mark.parametrize("family", ["qwen3", "llama", "mixtral", "phi3"])
def test_weights_that_stay_quantized(family: str, type_name: str, tmp_path: Path) -> None:
    made(tmp_path / "model", torch.float32, **FAMILIES[family])
    file = export_gguf(tmp_path / "model", tmp_path / "file.gguf", type_name)
    kept = models.load(file, dtype=torch.float32, keep_quantized=True)
    plain = models.load(file, dtype=torch.float32)
    assert plain.config.quantization is None
    inner = kept.layers[0].mlp.experts if family == "mixtral" else kept.layers[0].mlp.down  # type: ignore[union-attr]
    assert isinstance(inner, QuantizedExperts | QuantizedLinear)
    weight = kept.layers[0].attention.q.quantized  # type: ignore[union-attr, operator]
    assert torch.equal(weight.dequantized(), plain.layers[0].attention.q.weight)  # type: ignore[union-attr]
    assert sum(p.nbytes for p in kept.parameters()) < 0.5 * sum(p.nbytes for p in plain.parameters())
    torch.testing.assert_close(logits(kept), logits(plain), rtol=1e-3, atol=0.02)


def test_experts_of_several_types_are_dequantized(tmp_path: Path) -> None:
    made(tmp_path / "model", **TINY_MOE)  # 16 columns of the down projection are no block
    file = export_gguf(tmp_path / "model", tmp_path / "file.gguf", "Q8_0")
    kept, plain = (models.load(file, dtype=torch.float32, keep_quantized=kept) for kept in (True, False))
    assert not isinstance(kept.layers[0].mlp.experts, QuantizedExperts)  # type: ignore[union-attr]
    assert isinstance(kept.layers[0].attention.q, QuantizedLinear)  # type: ignore[union-attr]
    torch.testing.assert_close(logits(kept), logits(plain), rtol=1e-3, atol=0.02)


def test_types_of_tensors(tmp_path: Path) -> None:
    made(tmp_path / "model", **LLAMA)
    for type_name, others in {"Q4_0": {"Q8_0"}, "F16": set(), "Q8_0": set()}.items():
        file = export_gguf(tmp_path / "model", tmp_path / f"{type_name}.gguf", type_name)
        read = read_gguf(file)
        found = {name: entry.type.name for name, entry in read.tensors.items()}
        assert set(found.values()) == {type_name, "F32", *others}
        assert found["blk.0.attn_norm.weight"] == "F32"
        assert read.metadata["general.file_type"] == {"Q4_0": 2, "F16": 1, "Q8_0": 7}[type_name]


def test_the_package_reads_what_is_written(tmp_path: Path) -> None:
    model = made(tmp_path / "model", **FAMILIES["llama, linear"])
    reader = gguf.GGUFReader(export_gguf(tmp_path / "model", tmp_path / "file.gguf"))
    tensors = {tensor.name: tensor for tensor in reader.tensors}
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, 2)
    known = {names.get_name(name, try_suffixes=(".weight", ".bias")) for name, _ in to_hf(model)}
    assert set(tensors) == known
    down = tensors["blk.1.ffn_down.weight"]
    expected = model.layers[1].mlp.down.weight.detach().view(torch.int16).numpy()  # type: ignore[union-attr]
    assert np.array_equal(down.data.view(np.int16), expected)
    assert reader.get_field("llama.attention.head_count_kv").contents() == 2
    assert reader.get_field("llama.rope.scaling.factor").types == [gguf.GGUFValueType.FLOAT32]
    assert reader.get_field("tokenizer.chat_template").contents() == tiny_tokenizer().chat_template


def test_as_a_model_of_the_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RONDO_HOME", str(own_home(tmp_path / "home")))
    model = made(tmp_path / "model")
    file = export_gguf(tmp_path / "model", tmp_path / "files" / "my-model.gguf", "Q8_0")
    assert resolve(file) == resolve(file.parent) == file
    assert name_of(file) == "my-model"
    import_model(file, "taken")
    assert [name for name, _ in list_models()] == ["taken"]
    taken = resolve("taken")
    assert name_of(taken) == "taken"
    assert fingerprint(taken) == fingerprint(file)
    found = facts(taken)
    assert found.parameters == sum(parameter.numel() for parameter in model.parameters())
    assert found.has_tokenizer
    assert "q_proj" in found.adapter_targets
    assert summary(list_models()[0][1]).dtypes == ("F32", "Q8_0")
    assert summary(taken).disk_bytes == file.stat().st_size
    assert Tokenizer.load(taken).encode("the user") == tiny_tokenizer().encode("the user")
    with pytest.raises(NotFound, match="no model"):
        resolve(tmp_path / "absent.gguf")


def metadata(**changes: Any) -> dict[str, Any]:
    """Of a file without tensors."""
    known = {"block_count": 2, "embedding_length": 32, "context_length": 64, "feed_forward_length": 48}
    fields = {f"qwen3.{key}": value for key, value in (known | {"attention.head_count": 4}).items()}
    return {k: v for k, v in ({"general.architecture": "qwen3"} | fields | changes).items() if v is not None}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"general.architecture": "mamba"},
            "architecture 'mamba' .*not supported in GGUF files; supported: llama",
        ),
        ({"general.architecture": None}, "'general.architecture' is missing"),
        ({"qwen3.embedding_length": None}, "'qwen3.embedding_length' is missing"),
        ({"qwen3.block_count": 0}, "'qwen3.block_count' is 0, not a whole number above 0"),
        ({"qwen3.context_length": "long"}, "'qwen3.context_length' is 'long', which has the wrong type"),
        ({"qwen3.attention.head_count_kv": [2, 4]}, "'qwen3.attention.head_count_kv' differs between layers"),
        ({}, "'token_embd.weight' is missing"),
    ],
)
def test_errors_name_file_and_field(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    file = write_metadata(tmp_path / "bad.gguf", metadata(**changes))
    with pytest.raises(ModelError, match=message) as error:
        models.load(file)
    assert "bad.gguf" in error.value.message


def test_tensors_that_do_not_fit_the_metadata(tmp_path: Path) -> None:
    config = tiny_config()
    tensors = dict(to_hf(models.new(config)))
    lost = "model.layers.1.mlp.up_proj.weight"
    some = [(name, tensor) for name, tensor in tensors.items() if name != lost]
    write_qwen3(tmp_path / "lacks.gguf", config, some, {}, "F32")
    with pytest.raises(ModelError, match=rf"lacks\.gguf does not match .* 1 missing: {lost}"):
        models.load(tmp_path / "lacks.gguf")
    changed = config | {"intermediate_size": 47}
    write_qwen3(tmp_path / "shape.gguf", changed, tensors.items(), {}, "F32")
    with pytest.raises(ModelError, match=r"should be \[47, 32\]"):
        models.load(tmp_path / "shape.gguf")


def cannot(folder: Path, **changes: Any) -> Callable[[], Path]:
    made(folder / "model", **changes)
    return lambda: export_gguf(folder / "model", folder / "out.gguf")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (TINY_GPT_OSS, "A gpt_oss model cannot be written as GGUF; supported: gemma2"),
        ({"rope_scaling": {"rope_type": "dynamic", "factor": 2.0}}, "rotary embeddings of type 'dynamic'"),
        (
            {"model_type": "qwen2", "use_sliding_window": True, "sliding_window": 9, "max_window_layers": 1},
            r"layers\.1\.attention\.window is 9, and would be None",
        ),
        ({"model_type": "smollm3", "no_rope_layer_interval": 2}, r"layers\.1\.attention\.rope is None"),
        (GEMMA2 | {"query_pre_attn_scalar": 24}, r"layers\.0\.attention\.scale"),
    ],
)
def test_models_that_gguf_cannot_express(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=message):
        cannot(tmp_path, **changes)()
    assert not (tmp_path / "out.gguf").exists()


def test_export_leaves_nothing_behind(tmp_path: Path) -> None:
    model = made(tmp_path / "model")
    with torch.no_grad():
        model.layers[0].mlp.up.weight[3, 5] = 1e6  # type: ignore[union-attr]
    models.save(model, tmp_path / "large")
    tiny_tokenizer().save(tmp_path / "large")
    with pytest.raises(
        ModelError, match=r"blk\.0\.ffn_up\.weight: a weight is not finite, or too large for F16: use bf16"
    ):
        export_gguf(tmp_path / "large", tmp_path / "out" / "large.gguf", "F16")
    assert list((tmp_path / "out").iterdir()) == []
    done = export_gguf(tmp_path / "model", tmp_path / "out" / "fine.gguf")
    with pytest.raises(RondoError, match="already exists"):
        export_gguf(tmp_path / "model", done)
    export_gguf(tmp_path / "model", done, replace=True)
    quantize_folder(tmp_path / "model", tmp_path / "int8", QuantizationRecipe("int8", None))
    with pytest.raises(InvalidRequest, match=r"quantized .*Export the plain model"):
        export_gguf(tmp_path / "int8", tmp_path / "out" / "int8.gguf")
