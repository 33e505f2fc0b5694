"""GGUF files of a hub on loopback, selected by quantization as in llama.cpp and Ollama."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from rondo.base.errors import ModelError, NotFound, RondoError, Unavailable
from rondo.hub.cache import hub_cache, remove_snapshot, snapshots
from rondo.hub.gguf import label_of
from rondo.hub.models import cached_model, ensure_model, pull_config, pull_model, pull_tokenizer
from rondo.hub.names import HubName, hub_name
from support.hub import FakeHub, fake_hub

__all__ = ["fake_hub"]

FILES = {
    f"Tiny-{label}.gguf": label.encode() * count
    for label, count in {"Q8_0": 2000, "Q4_K_M": 1000, "Q4_0": 900, "IQ2_XS": 300, "BF16": 4000}.items()
} | {
    "Tiny-F32-00001-of-00002.gguf": b"1" * 2000,
    "Tiny-F32-00002-of-00002.gguf": b"2" * 2000,
    "mmproj-Tiny-F16.gguf": b"image encoder" * 100,
    "README.md": b"# GGUF",
}


def named(text: str) -> HubName:
    name = hub_name(text)
    assert name is not None
    return name


@pytest.mark.parametrize(
    ("path", "label"),
    [
        ("Qwen3-0.6B-Q8_0.gguf", "Q8_0"),
        ("qwen2.5-7b-instruct-q4_k_m.gguf", "Q4_K_M"),
        ("llama-2-7b.Q5_K_S.gguf", "Q5_K_S"),
        ("gemma-UD-Q4_K_XL.gguf", "UD-Q4_K_XL"),
        ("Phi-3-mini-4k-instruct-fp16.gguf", "F16"),
        ("ggml_model_f16.gguf", "F16"),
        ("BF16/model.gguf", "BF16"),
        ("UD-IQ1_S/Big-UD-IQ1_S-00001-of-00004.gguf", "UD-IQ1_S"),
        ("tiny.gguf", "tiny"),
    ],
)
def test_labels(path: str, label: str) -> None:
    assert label_of(path) == label


@pytest.mark.parametrize(
    ("text", "file"),
    [
        ("org/tiny", "Tiny-Q4_K_M.gguf"),
        ("org/tiny:Q8_0", "Tiny-Q8_0.gguf"),
        ("org/tiny:q8_0", "Tiny-Q8_0.gguf"),
        ("hf.co/org/tiny:Q4_0", "Tiny-Q4_0.gguf"),
        ("https://huggingface.co/org/tiny:bf16", "Tiny-BF16.gguf"),
        ("org/tiny@main:Tiny-Q4_0.gguf", "Tiny-Q4_0.gguf"),
    ],
)
def test_a_name_selects_one_file(
    fake_hub: FakeHub, monkeypatch: pytest.MonkeyPatch, text: str, file: str
) -> None:
    fake_hub.repo("org/tiny", FILES)
    path = ensure_model(named(text))
    assert (path.name, path.read_bytes()) == (file, FILES[file])
    assert [each.name for each in path.parent.iterdir()] == [file]
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert cached_model(named(text)) == path
    assert pull_config(named(text)) == pull_tokenizer(named(text)) == path


def test_the_only_file_needs_no_quantization(fake_hub: FakeHub) -> None:
    fake_hub.repo("org/tiny", {"tiny.gguf": b"one" * 400, "config.json": b"{}"})
    assert ensure_model(named("org/tiny")).name == "tiny.gguf"


def test_safetensors_have_precedence(fake_hub: FakeHub) -> None:
    both = {"config.json": b"{}", "tokenizer.json": b"{}", "model.safetensors": b"s" * 2000, **FILES}
    fake_hub.repo("org/tiny", both)
    folder = ensure_model(named("org/tiny"))
    assert (folder / "model.safetensors").is_file()
    assert ensure_model(named("org/tiny:Q8_0")) == folder / "Tiny-Q8_0.gguf"
    assert ensure_model(named("org/tiny")) == folder


CHOICES = "Choose one of Q4_0 (3.5 KB), Q4_K_M (5.9 KB), Q8_0 (7.8 KB), BF16 (15.6 KB), for example `org/tiny:Q4_K_M`"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("org/tiny:Q6_K", f"org/tiny has no GGUF file 'Q6_K'. {CHOICES}"),
        ("org/tiny:IQ2_XS", f"IQ2_XS of org/tiny is a quantization that is not supported. {CHOICES}"),
        ("org/tiny:F32", f"F32 of org/tiny is split into 2 files, which are not read one by one. {CHOICES}"),
        (
            "org/plain:Q8_0",
            "org/plain has no GGUF files, so 'Q8_0' selects nothing: leave it out (org/plain).",
        ),
        (
            "org/sizes:Q8_0",
            "org/sizes:Q8_0 matches 2 files. Choose one: org/sizes:1B-Q8_0.gguf, org/sizes:2B-Q8_0.gguf",
        ),
        ("org/sizes", "org/sizes has 3 GGUF files. Choose one of Q8_0"),
        ("org/small", "None of its GGUF files can be loaded: choose another repository."),
    ],
)
def test_errors_list_the_quantizations(fake_hub: FakeHub, text: str, message: str) -> None:
    fake_hub.repo("org/tiny", FILES)
    fake_hub.repo("org/plain", {"config.json": b"{}", "model.safetensors": b"s"})
    sizes = {"1B-Q8_0.gguf": b"1", "2B-Q8_0.gguf": b"2", "1B-BF16.gguf": b"3"}
    fake_hub.repo("org/sizes", sizes)
    fake_hub.repo("org/small", {"x-IQ1_S.gguf": b"1"})
    with pytest.raises((NotFound, ModelError), match=re.escape(message)):
        ensure_model(named(text))
    assert not list(hub_cache().rglob("*.gguf"))


def test_a_plan_needs_the_file(fake_hub: FakeHub) -> None:
    fake_hub.repo("org/tiny", FILES)
    with pytest.raises(ModelError, match="run `rondo pull org/tiny:Q8_0` first"):
        pull_config(named("org/tiny:Q8_0"))


def test_a_file_of_another_program_is_used(fake_hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    from huggingface_hub import hf_hub_download

    fake_hub.repo("org/tiny", FILES)
    theirs = hf_hub_download("org/tiny", "Tiny-Q8_0.gguf", endpoint=fake_hub.url, cache_dir=hub_cache())
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert ensure_model(named("org/tiny")) == Path(theirs)
    with pytest.raises(Unavailable):
        ensure_model(named("org/tiny:Q4_0"))


def test_a_check_refuses_the_file(fake_hub: FakeHub) -> None:
    def refuse(path: Path) -> None:
        raise ModelError(f"{path.name} is of an unsupported family")

    fake_hub.repo("org/tiny", FILES)
    with pytest.raises(RondoError, match=r"Tiny-Q4_K_M\.gguf is of an unsupported family"):
        pull_model(named("org/tiny"), check=refuse)


def test_removal_of_one_file(fake_hub: FakeHub) -> None:
    fake_hub.repo("org/tiny", FILES)
    first, second = (ensure_model(named(f"org/tiny:{label}")) for label in ("Q8_0", "Q4_0"))
    remove_snapshot(first)
    assert second.read_bytes() == FILES["Tiny-Q4_0.gguf"]
    assert len(list((second.parents[2] / "blobs").iterdir())) == 1
    remove_snapshot(second)
    assert snapshots() == []
    assert not second.parents[2].exists()
