"""A checkpoint that cannot be loaded ends in one line that names the file, tensor or field at fault."""

import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from rondo.base.errors import ModelError
from rondo.models import load, parse
from support.families import reference

Q = "model.layers.0.self_attn.q_proj.weight"


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folders = {}
    for name in ("llama2", "qwen2", "phi3", "gemma2", "deepseek-v3"):
        folders[name] = tmp_path_factory.mktemp(name)
        reference(name).save_pretrained(folders[name])
    folders["sharded"] = tmp_path_factory.mktemp("sharded")
    reference("llama2").save_pretrained(folders["sharded"], max_shard_size="100KB")
    return folders


def copy_of(good: Path, folder: Path) -> Path:
    folder.mkdir()
    for file in good.iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    return folder


def config(**changes: Any) -> Callable[[Path], None]:
    def spoil(folder: Path) -> None:
        path = folder / "config.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | changes))

    return spoil


def no_key(key: str) -> Callable[[Path], None]:
    def spoil(folder: Path) -> None:
        path = folder / "config.json"
        path.write_text(json.dumps({k: v for k, v in json.loads(path.read_text()).items() if k != key}))

    return spoil


def text(file: str, content: str | bytes) -> Callable[[Path], None]:
    raw = content.encode() if isinstance(content, str) else content
    return lambda folder: (folder / file).write_bytes(raw) and None


def tensors(
    change: Callable[[dict[str, torch.Tensor]], Any], file: str = "model.safetensors"
) -> Callable[[Path], None]:
    def spoil(folder: Path) -> None:
        stored = load_file(folder / file)
        change(stored)
        save_file(stored, folder / file)

    return spoil


def header(
    change: Callable[[dict[str, Any]], Any], file: str = "model.safetensors"
) -> Callable[[Path], None]:
    """Rewrite the header and leave the data."""

    def spoil(folder: Path) -> None:
        raw = (folder / file).read_bytes()
        (length,) = struct.unpack("<Q", raw[:8])
        entries = json.loads(raw[8 : 8 + length])
        entries = change(entries) or entries
        encoded = json.dumps(entries).encode()
        (folder / file).write_bytes(struct.pack("<Q", len(encoded)) + encoded + raw[8 + length :])

    return spoil


def cut(size: Callable[[int, int], int]) -> Callable[[Path], None]:
    """Keep `size(length of the header, length of the file)` bytes."""

    def spoil(folder: Path) -> None:
        path = folder / "model.safetensors"
        raw = path.read_bytes()
        path.write_bytes(raw[: size(struct.unpack("<Q", raw[:8])[0], len(raw))])

    return spoil


def index(change: Callable[[dict[str, Any]], Any]) -> Callable[[Path], None]:
    def spoil(folder: Path) -> None:
        path = folder / "model.safetensors.index.json"
        entries = json.loads(path.read_text())
        entries = change(entries) or entries
        path.write_text(json.dumps(entries))

    return spoil


def remove(*files: str) -> Callable[[Path], None]:
    return lambda folder: [(folder / file).unlink() for file in files] and None


CASES: dict[str, tuple[str, Callable[[Path], Any], str]] = {
    "near architecture": (
        "llama2",
        config(model_type="lama"),
        r"model_type 'lama' in config.json. Did you mean 'llama'",
    ),
    "unknown architecture": (
        "llama2",
        config(model_type="rwkv7"),
        r"unknown architecture.*Known: deepseek_v2, ",
    ),
    "architecture of a wrong type": (
        "llama2",
        config(model_type=["llama"]),
        r"unknown architecture: model_type \['llama'\]",
    ),
    "no architecture": ("llama2", no_key("model_type"), r"config.json has no 'model_type'"),
    "missing key": ("llama2", no_key("hidden_size"), r"config.json of a llama model lacks 'hidden_size'"),
    "missing vocabulary": ("qwen2", no_key("vocab_size"), r"config.json of a qwen2 model lacks 'vocab_size'"),
    "key of a wrong type": ("llama2", config(hidden_size="64"), r"config.json of a llama model"),
    "key that is null": ("llama2", config(num_hidden_layers=None), r"config.json of a llama model"),
    "zero heads": ("llama2", config(num_attention_heads=0, head_dim=None), r"config.json of a llama model"),
    "negative size": ("llama2", config(intermediate_size=-3), r"config.json of a llama model"),
    "heads that do not divide": ("qwen2", config(num_key_value_heads=3), r"config.json.*num_key_value_heads"),
    "activation": ("llama2", config(hidden_act="relu"), r"config.json: hidden_act 'relu' is not supported"),
    "rope": (
        "llama2",
        config(rope_parameters={"rope_type": "spiral", "rope_theta": 1e4}),
        r"config.json: rope type 'spiral' is not supported",
    ),
    "norm epsilon in quotes": (
        "llama2",
        config(rms_norm_eps="1e-6"),
        r"rms_norm_eps is '1e-6', not a number",
    ),
    "tied in quotes": ("llama2", config(tie_word_embeddings="false"), r"tie_word_embeddings is 'false'"),
    "end token as text": ("llama2", config(eos_token_id="</s>"), r"eos_token_id is '</s>', not a token id"),
    "layers are true": ("llama2", config(num_hidden_layers=True), r"num_hidden_layers is True"),
    "odd head": ("llama2", config(head_dim=15), r"15 dimensions, which is odd"),
    "kinds of layers": (
        "qwen2",
        config(layer_types=["full_attention", "linear_attention", "full_attention"]),
        r"layer_types has 'linear_attention', which is not supported",
    ),
    "too few kinds": (
        "gemma2",
        config(layer_types=["full_attention"]),
        r"layer_types has 1 entries for 3 layers",
    ),
    "experts in some layers": (
        "deepseek-v3",
        config(moe_layer_freq=2),
        r"moe_layer_freq other than 1 is not supported",
    ),
    "deep config": ("llama2", text("config.json", "[" * 100_000), r"config.json"),
    "deep header": (
        "llama2",
        text("model.safetensors", struct.pack("<Q", 100_000) + b"[" * 100_000),
        r"broken header",
    ),
    "rope of a wrong type": ("llama2", config(rope_parameters="linear"), r"config.json of a llama model"),
    "quantized": (
        "llama2",
        config(quantization_config={"quant_method": "awq", "bits": 4}),
        r"does not match the quantization in its config.json. 63 missing: .* \(the file has it unquantized\)",
    ),
    "quantized oddly": (
        "llama2",
        config(quantization_config="int4"),
        r"quantization_config.quant_method is 'int4', which is not supported",
    ),
    "config is no JSON": (
        "llama2",
        text("config.json", '{"model_type": "llama", '),
        r"config.json is not valid JSON",
    ),
    "config is no text": ("llama2", text("config.json", b"\xff\xfe\x00"), r"config.json is not valid JSON"),
    "config is a list": ("llama2", text("config.json", "[]"), r"config.json is not a JSON object"),
    "config is absent": ("llama2", remove("config.json"), r"has no config.json"),
    "missing tensors": (
        "llama2",
        tensors(lambda t: [t.pop(Q), t.pop("model.norm.weight")]),
        rf"does not match a llama model of its config.json. 2 missing: {Q}, model.norm.weight",
    ),
    "many missing": ("llama2", config(num_hidden_layers=9), r"54 missing: model.layers.3.* and 46 more$"),
    "extra tensors": (
        "llama2",
        tensors(lambda t: t.update({"model.more.weight": torch.ones(3)})),
        r"1 unexpected: model.more.weight",
    ),
    "fewer layers": ("llama2", config(num_hidden_layers=2), r"9 unexpected: model.layers.2"),
    "wrong shape": (
        "llama2",
        tensors(lambda t: t.update({Q: torch.ones(63, 64)})),
        rf"1 of the wrong shape: {Q} is \[63, 64\], should be \[64, 64\]",
    ),
    "wrong shape where fused": (
        "phi3",
        tensors(lambda t: t.update({"model.layers.0.mlp.gate_up_proj.weight": torch.ones(96, 64)})),
        r"gate_up_proj.weight is \[96, 64\], should be \[192, 64\]",
    ),
    "integers": (
        "llama2",
        tensors(lambda t: t.update({Q: torch.ones(64, 64, dtype=torch.int8)})),
        rf"1 of a dtype that is not floating-point: {Q} is torch.int8",
    ),
    "several at once": (
        "llama2",
        tensors(lambda t: [t.pop(Q), t.update({"x": torch.ones(1)})]),
        rf"1 missing: {Q}; 1 unexpected: x",
    ),
    "tied, yet different": (
        "qwen2",
        tensors(lambda t: t.update({"lm_head.weight": torch.ones(199, 64)})),
        r"config.json ties lm_head.weight to the embedding, yet the two differ",
    ),
    "tied, of another shape": (
        "qwen2",
        tensors(lambda t: t.update({"lm_head.weight": torch.ones(3)})),
        r"config.json ties lm_head.weight",
    ),
    "empty file": ("llama2", cut(lambda header, size: 0), r"model.safetensors is truncated"),
    "cut in the length": ("llama2", cut(lambda header, size: 5), r"model.safetensors is truncated"),
    "cut after the length": ("llama2", cut(lambda header, size: 8), r"model.safetensors is truncated"),
    "cut in the header": (
        "llama2",
        cut(lambda header, size: 8 + header // 2),
        r"model.safetensors is truncated",
    ),
    "cut after the header": (
        "llama2",
        cut(lambda header, size: 8 + header),
        r"model.safetensors is truncated",
    ),
    "cut in the data": (
        "llama2",
        cut(lambda header, size: size // 2),
        r"model.safetensors is truncated: .* ends at byte",
    ),
    "cut by a byte": (
        "llama2",
        cut(lambda header, size: size - 1),
        r"model.safetensors is truncated: .* ends at byte",
    ),
    "garbage": (
        "llama2",
        text("model.safetensors", b"\x89PNG" * 40),
        r"model.safetensors is truncated or not a safe",
    ),
    "a pointer to large storage": (
        "llama2",
        text("model.safetensors", "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 4000\n"),
        r"model.safetensors is truncated or not a safetensors file",
    ),
    "header is no JSON": (
        "llama2",
        text("model.safetensors", struct.pack("<Q", 16) + b"{not a header ! }" + bytes(64)),
        r"model.safetensors has a broken header",
    ),
    "header is no text": (
        "llama2",
        text("model.safetensors", struct.pack("<Q", 8) + b"\xff" * 72),
        r"model.safetensors has a broken header",
    ),
    "header is a list": ("llama2", header(lambda h: [1]), r"model.safetensors has a broken header"),
    "entry without offsets": (
        "llama2",
        header(lambda h: h[Q].pop("data_offsets") and None),
        rf"model.safetensors has a broken header at '{Q}'",
    ),
    "entry that is a number": ("llama2", header(lambda h: h.update({Q: 3})), rf"broken header at '{Q}'"),
    "offsets that are text": (
        "llama2",
        header(lambda h: h[Q].update(data_offsets=["0", "16384"])),
        rf"broken header at '{Q}'",
    ),
    "offsets below zero": (
        "llama2",
        header(lambda h: h[Q].update(data_offsets=[-64 * 64 * 4, 0])),
        rf"broken header at '{Q}'",
    ),
    "shape below zero": (
        "llama2",
        header(lambda h: h[Q].update(shape=[-64, -64])),
        rf"broken header at '{Q}'",
    ),
    "shape of text": ("llama2", header(lambda h: h[Q].update(shape=["64", 64])), rf"broken header at '{Q}'"),
    "shape of other size": (
        "llama2",
        header(lambda h: h[Q].update(shape=[64, 65])),
        rf"model.safetensors: {Q} has 16384 bytes, which is not its shape \[64, 65\]",
    ),
    "dtype": (
        "llama2",
        header(lambda h: h[Q].update(dtype="F8_E5M2")),
        rf"model.safetensors: {Q} has dtype F8_E5M2, which cannot be loaded",
    ),
    "dtype of a wrong type": ("llama2", header(lambda h: h[Q].update(dtype=["F32"])), rf"{Q}"),
    "no weights": ("llama2", remove("model.safetensors"), r"has no model.safetensors"),
    "pickles": (
        "llama2",
        lambda d: (d / "model.safetensors").rename(d / "pytorch_model.bin"),
        r"holds PyTorch pickles \(\*.bin\), which are not loaded; convert it to safetensors",
    ),
    "absent shard": (
        "sharded",
        remove("model-00002-of-00006.safetensors"),
        r"lacks model-00002-of-00006.safetensors, which model.safetensors.index.json names",
    ),
    "truncated shard": (
        "sharded",
        text("model-00003-of-00006.safetensors", b"\x10"),
        r"model-00003-of-00006.safetensors is truncated",
    ),
    "index is no JSON": (
        "sharded",
        text("model.safetensors.index.json", "{"),
        r"index.json is not valid JSON",
    ),
    "index is empty": ("sharded", text("model.safetensors.index.json", "{}"), r"index.json is broken"),
    "index with a list": ("sharded", index(lambda i: i.update(weight_map=[1])), r"index.json is broken"),
    "index with numbers": (
        "sharded",
        index(lambda i: i["weight_map"].update({Q: 3})),
        r"index.json is broken",
    ),
    "index with other names": (
        "sharded",
        index(lambda i: i["weight_map"].update(more="model-00001-of-00006.safetensors")),
        r"index.json names tensors its files do not hold: more",
    ),
    "index lacks a tensor and its shard": (
        "sharded",
        index(lambda i: {"weight_map": {k: v for k, v in i["weight_map"].items() if "00002" not in v}}),
        r"missing: model.layers",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_one_clear_line(case: str, good: dict[str, Path], tmp_path: Path) -> None:
    kind, spoil, message = CASES[case]
    folder = copy_of(good[kind], tmp_path / "model")
    load(folder)
    spoil(folder)
    with pytest.raises(ModelError, match=message) as caught:
        load(folder)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 1000


def test_not_a_folder(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="nowhere is not a folder"):
        load(tmp_path / "nowhere")


def test_unknown_architecture_names_the_field() -> None:
    with pytest.raises(ModelError) as caught:
        parse({"model_type": "qwen33"})
    assert caught.value.param == "model_type"
    assert "Did you mean 'qwen3'" in caught.value.message


def test_unreadable_file(good: dict[str, Path], tmp_path: Path) -> None:
    folder = copy_of(good["llama2"], tmp_path / "model")
    (folder / "model.safetensors").unlink()
    (folder / "model.safetensors").mkdir()
    with pytest.raises(ModelError, match=r"cannot read .*model.safetensors: Is a directory"):
        load(folder)


def test_file_that_shrinks_while_it_is_read(good: dict[str, Path], tmp_path: Path) -> None:
    """Streaming (another dtype is asked for) meets the end of the file, and says so."""
    from rondo.models.files import safetensors

    folder = copy_of(good["llama2"], tmp_path / "model")
    stored = safetensors.open_checkpoint(folder)["lm_head.weight"]
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[: stored.start + 100])
    with pytest.raises(ModelError, match=r"model.safetensors ended early"):
        stored.read_into(torch.empty(stored.shape, dtype=torch.bfloat16))
