"""Files that are fine: sharded, of every dtype, misaligned, mapped while they change. And full disks."""

import os
import resource
import struct
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import transformers as hf
from safetensors.torch import load_file, save_file

from rondo.base.errors import Conflict, RondoError, StorageError
from rondo.base.storage.files import atomic_dir
from rondo.models import Decoder, Packed, load, save, save_into
from rondo.models.files.mapping import to_hf
from support.disk import small_disk
from support.families import VOCAB, reference

TOKENS = torch.randint(3, VOCAB, (16,), generator=torch.Generator().manual_seed(1))
KINDS = ["llama3", "phi3", "gpt-oss", "deepseek-v3"]
"""Plain and tied; stacked rows; interleaved columns; many experts and a tensor that stays in fp32."""


@torch.no_grad()
def logits_of(model: Decoder) -> torch.Tensor:
    attend = Packed([0, len(TOKENS)])
    return model(TOKENS, attend.positions, attend)


def parameters_of(model: Decoder) -> dict[str, torch.Tensor]:
    return {name: parameter.detach() for name, parameter in model.named_parameters()}


def assert_same(one: Decoder, two: Decoder) -> None:
    first, second = parameters_of(one), parameters_of(two)
    assert first.keys() == second.keys()
    for name, tensor in first.items():
        assert tensor.dtype == second[name].dtype, name
        assert torch.equal(tensor, second[name]), name


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    reference("llama2").save_pretrained(tmp_path / "model")
    return tmp_path / "model"


@pytest.mark.parametrize("kind", KINDS)
def test_shards_equal_one_file(kind: str, tmp_path: Path) -> None:
    theirs = reference(kind)
    theirs.save_pretrained(tmp_path / "one")
    theirs.save_pretrained(tmp_path / "many", max_shard_size="60KB")
    assert len(list((tmp_path / "many").glob("*.safetensors"))) > 3
    assert_same(load(tmp_path / "one"), load(tmp_path / "many"))
    assert_same(load(tmp_path / "one", torch.bfloat16), load(tmp_path / "many", torch.bfloat16))


@pytest.mark.parametrize("kind", ["llama3", "phi3"])
def test_our_shards_in_transformers(kind: str, tmp_path: Path) -> None:
    theirs = reference(kind)
    theirs.save_pretrained(tmp_path / "one")
    save(load(tmp_path / "one"), tmp_path / "many", max_shard_bytes=60_000)
    shards = sorted((tmp_path / "many").glob("*.safetensors"))
    assert len(shards) > 3
    largest = max(tensor.nbytes for tensor in load_file(tmp_path / "one" / "model.safetensors").values())
    assert all(shard.stat().st_size < max(60_000, largest) + 4096 for shard in shards)
    again = hf.AutoModelForCausalLM.from_pretrained(
        tmp_path / "many", dtype=torch.float32, attn_implementation="eager"
    )
    for name, parameter in theirs.named_parameters():
        assert torch.equal(parameter, again.get_parameter(name)), name
    assert_same(load(tmp_path / "one"), load(tmp_path / "many"))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("stored", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("asked", [None, torch.float32, torch.bfloat16, torch.float16])
def test_dtypes(kind: str, stored: torch.dtype, asked: torch.dtype | None, tmp_path: Path) -> None:
    theirs = reference(kind).to(stored)
    theirs.save_pretrained(tmp_path / "model")
    on_disk = load_file(tmp_path / "model" / "model.safetensors")
    model = load(tmp_path / "model", asked)
    for name, tensor in to_hf(model):
        kept = asked is None or name.endswith("e_score_correction_bias")
        expected = on_disk[name] if kept else on_disk[name].to(asked)
        assert tensor.dtype == expected.dtype, name
        assert torch.equal(tensor, expected), name


def shifted(path: Path) -> None:
    """The same file with a header one byte longer, so that no tensor lies where its dtype would have it."""
    raw = path.read_bytes()
    (length,) = struct.unpack("<Q", raw[:8])
    header = raw[8 : 8 + length].rstrip(b" ")
    padded = header + b" " * (1 + (-len(header)) % 8)
    path.write_bytes(struct.pack("<Q", len(padded)) + padded + raw[8 + length :])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", [None, torch.bfloat16])
def test_misaligned_file(kind: str, dtype: torch.dtype | None, tmp_path: Path) -> None:
    reference(kind).save_pretrained(tmp_path / "model")
    path = tmp_path / "model" / "model.safetensors"
    if kind == "llama3":
        tensors = load_file(path)
        save_file(tensors | {"lm_head.weight": tensors["model.embed_tokens.weight"].clone()}, path)
    expected = load(tmp_path / "model", dtype)
    before = {name: tensor.clone() for name, tensor in parameters_of(expected).items()}
    del expected
    shifted(path)
    after = parameters_of(load(tmp_path / "model", dtype))
    assert all(torch.equal(after[name], tensor) for name, tensor in before.items())


def test_unchanged_tensors_are_mapped_and_not_read(folder: Path) -> None:
    """Loading 30 times must not take 30 times the memory."""
    models = [load(folder) for _ in range(30)]
    pages = Path("/proc/self/maps").read_text().count(str(folder / "model.safetensors"))
    assert pages >= 30
    assert all(torch.equal(logits_of(models[0]), logits_of(model)) for model in models[1:3])


def test_writing_to_a_loaded_model_leaves_the_file(folder: Path) -> None:
    path = folder / "model.safetensors"
    before = path.read_bytes()
    model, other = load(folder), load(folder)
    plain = logits_of(other)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(1.0)
    assert not torch.equal(logits_of(model), plain)
    assert path.read_bytes() == before
    assert torch.equal(logits_of(other), plain)
    assert torch.equal(logits_of(load(folder)), plain)


def test_saving_over_a_mapped_folder(folder: Path) -> None:
    """The new folder takes the name; the model that maps the old file keeps it."""
    old = load(folder)
    plain = logits_of(old)
    changed = load(folder)
    with torch.no_grad():
        for parameter in changed.parameters():
            parameter.mul_(0.5)
    with pytest.raises(Conflict):
        save(changed, folder)
    with atomic_dir(folder, replace=True) as partial:
        save_into(changed, partial)
    assert torch.equal(logits_of(old), plain)
    assert torch.equal(logits_of(load(folder)), logits_of(changed))
    assert not torch.equal(logits_of(load(folder)), plain)


def test_saving_a_model_into_its_own_folder(folder: Path) -> None:
    model = load(folder)
    before = (folder / "model.safetensors").read_bytes()
    with atomic_dir(folder, replace=True) as partial:
        save_into(model, partial)
    assert (folder / "model.safetensors").read_bytes() == before


def test_progress_counts_every_byte(folder: Path, tmp_path: Path) -> None:
    total = sum(tensor.nbytes for tensor in load_file(folder / "model.safetensors").values())
    for dtype in (None, torch.bfloat16):
        seen: list[int] = []
        model = load(folder, dtype, progress=seen.append)
        assert sum(seen) == total
    written: list[int] = []
    save(model, tmp_path / "copy", progress=written.append)
    assert sum(written) == total // 2


# No room.


def test_no_room_is_said_before_anything_is_written(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = load(folder)
    monkeypatch.setattr(
        os, "statvfs", lambda path: SimpleNamespace(f_bavail=3, f_frsize=4096, f_blocks=9, f_bfree=3)
    )
    with pytest.raises(StorageError) as caught:
        save(model, tmp_path / "out")
    assert str(tmp_path / "out") in str(caught.value)
    assert "\n" not in str(caught.value)
    assert {path.name for path in tmp_path.iterdir()} == {"model"}


def test_file_too_large_for_the_limit(folder: Path, tmp_path: Path) -> None:
    """The write itself fails half-way: one clear error, and nothing is left."""
    model = load(folder)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, hard))
    try:
        with pytest.raises(StorageError) as caught:
            save(model, tmp_path / "out")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert str(tmp_path / "out") in str(caught.value)
    assert {path.name for path in tmp_path.iterdir()} == {"model"}


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    disk = tmp_path / "disk"
    with small_disk(disk, "300k"):
        yield disk


@pytest.mark.parametrize("foreseen", [True, False])
def test_full_disk(foreseen: bool, folder: Path, disk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether seen coming or met in the middle of a write."""
    if not foreseen:
        plenty = SimpleNamespace(f_bavail=1 << 30, f_frsize=4096, f_blocks=1 << 30, f_bfree=1 << 30)
        monkeypatch.setattr(os, "statvfs", lambda path: plenty)
    with pytest.raises(RondoError) as caught:
        save(load(folder), disk / "out", max_shard_bytes=60_000)
    assert isinstance(caught.value, StorageError)
    assert str(disk / "out") in str(caught.value)
    assert list(disk.iterdir()) == []
