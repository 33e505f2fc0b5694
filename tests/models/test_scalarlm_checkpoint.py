"""Import of ScalarLM's checkpoint_N.pt: LoRA, Tokenformer with other base weights, full weights, hostile files."""

import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from rondo import models
from rondo.base.errors import Conflict, InvalidRequest, ModelError
from rondo.base.storage.home import models_dir
from rondo.models.adapters import TokenformerSpec, attach_tokenformer, load_adapter, save_adapter
from rondo.models.adapters.scalarlm import import_checkpoint
from support.adapters import write_lora
from support.home import own_home
from support.tiny import tiny_model, tiny_tokenizer


@pytest.fixture
def base(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("RONDO_HOME", str(own_home(tmp_path / "home")))
    folder = models_dir() / "toy"
    folder.mkdir(parents=True)
    models.save_into(tiny_model(), folder)
    tiny_tokenizer().save(folder)
    return folder


def checkpoint(folder: Path, tensors: dict[str, torch.Tensor], **more: Any) -> Path:
    path = folder / "checkpoint_7.pt"
    content = {
        "model_state_dict": tensors,
        "step": 7,
        "optimizer_state_dict": {},
        "rng_state": torch.zeros(3),
    }
    torch.save(content | more, path)
    return path


def stored(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(folder / "adapter_model.safetensors")


def test_a_lora_becomes_an_adapter(base: Path, tmp_path: Path) -> None:
    write_lora(tiny_model(), tmp_path / "own")
    own = stored(tmp_path / "own")
    plain = {
        name.removeprefix("base_model.model.").replace(".weight", ".default.weight"): tensor
        for name, tensor in own.items()
    }
    with pytest.raises(InvalidRequest, match="--alpha"):
        import_checkpoint(checkpoint(tmp_path, plain), "facts", "toy")
    path = checkpoint(tmp_path, plain, metadata={"lora_alpha": 16})
    imported = import_checkpoint(path, "facts", "toy")
    assert imported == models_dir() / "facts"
    assert stored(imported).keys() == own.keys()
    assert all(torch.equal(tensor, own[name]) for name, tensor in stored(imported).items())
    load_adapter(models.load(base), imported)
    with pytest.raises(Conflict):
        import_checkpoint(path, "facts", "toy")
    wrapped = checkpoint(tmp_path, {f"model.{name}": each for name, each in plain.items()})
    assert stored(import_checkpoint(wrapped, "facts", "toy", alpha=16, replace=True)).keys() == own.keys()


def test_a_tokenformer_becomes_a_base_and_an_adapter(base: Path, tmp_path: Path) -> None:
    model = models.load(base)
    attach_tokenformer(model, TokenformerSpec(r=4, heads=2))
    save_adapter(model, tmp_path / "own")
    own = {
        name.removeprefix("base_model.model."): tensor for name, tensor in stored(tmp_path / "own").items()
    }
    changed = "model.layers.0.self_attn.q_proj.weight"
    before = load_file(base / "model.safetensors")
    new = torch.ones_like(before[changed], dtype=torch.float32)
    imported = import_checkpoint(checkpoint(tmp_path, own | {changed: new}), "facts", "toy")
    after = load_file(models_dir() / "facts-base" / "model.safetensors")
    assert [name for name in before if not torch.equal(before[name], after[name])] == [changed]
    whole = models.load(models_dir() / "facts-base")
    load_adapter(whole, imported)


def test_full_weights_become_a_model(base: Path, tmp_path: Path) -> None:
    weights = {name: tensor + 1 for name, tensor in load_file(base / "model.safetensors").items()}
    imported = import_checkpoint(checkpoint(tmp_path, weights), "facts", "toy")
    found = load_file(imported / "model.safetensors")
    assert all(torch.equal(found[name], tensor) for name, tensor in weights.items())
    models.load(imported)


class Hostile:
    def __reduce__(self) -> Any:
        return (Path.touch, (Path("escaped"),))


def test_other_files_are_refused_and_run_nothing(
    base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    cut = tmp_path / "cut.pt"
    for path in (
        checkpoint(tmp_path, {"a": torch.zeros(1)}, extra=Hostile()),
        _written(tmp_path / "plain.pt", pickle.dumps(Hostile())),
        _written(cut, b"PK\x03\x04"),
        _written(tmp_path / "empty.pt", b""),
    ):
        with pytest.raises(ModelError):
            import_checkpoint(path, "facts", "toy")
    assert not (tmp_path / "escaped").exists()
    for tensors in (
        {"model.layers.9.mlp.up_proj.weight": torch.zeros(1)},
        {"model.norm.weight": torch.zeros(3)},
    ):
        with pytest.raises(ModelError, match="does not fit"):
            import_checkpoint(checkpoint(tmp_path, tensors), "facts", "toy")
    assert not (models_dir() / "facts").exists()


def _written(path: Path, data: bytes) -> Path:
    path.write_bytes(data)
    return path
