"""Models by name from a hub on loopback: what is downloaded, resumed, verified and found again."""

from __future__ import annotations

import hashlib
import json
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from rondo.base.errors import (
    Forbidden,
    InvalidRequest,
    ModelError,
    NotFound,
    RondoError,
    StorageError,
    Unauthorized,
    Unavailable,
)
from rondo.hub import transfer
from rondo.hub.cache import hub_cache, remove_snapshot, snapshots
from rondo.hub.models import cached_model, ensure_model, pull_config, pull_model
from rondo.hub.names import HubName, hub_name
from support import hub as hub_server
from support.hub import FakeHub, fake_hub
from support.ports import free_port

__all__ = ["fake_hub"]

WEIGHTS = bytes(range(256)) * 40
FILES = {
    "config.json": b'{"model_type": "llama"}',
    "tokenizer.json": b"{}" * 600,
    "chat_template.jinja": b"{{ messages }}",
    "README.md": b"# A model",
    "model.safetensors": WEIGHTS,
    "pytorch_model.bin": WEIGHTS + b"b",
    "model-Q4.gguf": WEIGHTS + b"g",
    "original/consolidated.safetensors": WEIGHTS + b"o",
    "consolidated.safetensors": WEIGHTS + b"c",
    "onnx/model.onnx": b"onnx",
    ".gitattributes": b"lfs",
    "picture.png": b"png",
}
NAME = HubName("model", "org/model")


@pytest.fixture(autouse=True)
def no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("time.sleep", lambda _: None)


def names_in(folder: Path) -> set[str]:
    return {str(file.relative_to(folder)) for file in folder.rglob("*") if file.is_file()}


def partial(data: bytes = WEIGHTS) -> Path:
    """The unfinished download of a large file."""
    return hub_cache() / "models--org--model" / "blobs" / f"{hashlib.sha256(data).hexdigest()}.incomplete"


def test_a_pull_contains_one_copy_of_the_weights(fake_hub: FakeHub) -> None:
    commit = fake_hub.repo("org/model", FILES).branches["main"]
    folder = ensure_model(NAME)
    assert folder == hub_cache() / "models--org--model" / "snapshots" / commit
    assert names_in(folder) == {
        "config.json", "tokenizer.json", "chat_template.jinja", "README.md", "model.safetensors"
    }  # fmt: skip
    assert (folder / "model.safetensors").read_bytes() == WEIGHTS


def test_the_cache_is_used_without_requests(fake_hub: FakeHub) -> None:
    fake_hub.repo("org/model", FILES)
    folder = ensure_model(NAME)
    fake_hub.requests.clear()
    assert ensure_model(NAME) == folder
    assert fake_hub.requests == []


def test_transformers_and_rondo_share_the_cache(fake_hub: FakeHub) -> None:
    from huggingface_hub import scan_cache_dir, try_to_load_from_cache

    fake_hub.repo("org/model", FILES)
    folder = ensure_model(NAME)
    found = try_to_load_from_cache("org/model", "config.json", cache_dir=hub_cache())
    assert found == str(folder / "config.json")
    scanned = scan_cache_dir(hub_cache())
    assert not scanned.warnings
    assert [each.repo_id for each in scanned.repos] == ["org/model"]


def test_sharded_weights(fake_hub: FakeHub) -> None:
    index = {"weight_map": {"a": "model-1.safetensors", "b": "model-2.safetensors"}}
    shards = {"model-1.safetensors": WEIGHTS, "model-2.safetensors": WEIGHTS[::-1]}
    files = {name: data for name, data in FILES.items() if name != "model.safetensors"} | shards
    fake_hub.repo("org/model", {**files, "model.safetensors.index.json": json.dumps(index).encode()})
    folder = ensure_model(NAME)
    assert names_in(folder) >= {*shards, "model.safetensors.index.json"}
    assert cached_model(NAME) == folder
    (folder / "model-2.safetensors").unlink()
    assert cached_model(NAME) is None
    assert names_in(ensure_model(NAME)) >= set(shards)


def test_a_cut_connection_resumes_by_range(fake_hub: FakeHub) -> None:
    fake_hub.repo("org/model", FILES)
    fake_hub.cuts["model.safetensors"] = [4000, 3000]  # bytes of each response
    folder = ensure_model(NAME)
    assert (folder / "model.safetensors").read_bytes() == WEIGHTS
    assert fake_hub.ranges("/model.safetensors")[1::2] == [None, "bytes=4000-", "bytes=7000-"]


def test_a_failed_download_is_continued_by_range(fake_hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_hub.repo("org/model", FILES)
    fake_hub.cuts["model.safetensors"] = [4000, 0]
    monkeypatch.setattr(transfer, "FRUITLESS_ATTEMPTS", 1)
    with pytest.raises(Unavailable, match="cannot be reached"):
        ensure_model(NAME)
    assert partial().stat().st_size == 4000
    assert cached_model(NAME) is None
    fake_hub.requests.clear()
    assert (ensure_model(NAME) / "model.safetensors").read_bytes() == WEIGHTS
    assert fake_hub.ranges("/model.safetensors")[-1] == "bytes=4000-"
    assert not partial().exists()


def test_a_server_without_ranges_sends_the_file_again(fake_hub: FakeHub) -> None:
    fake_hub.repo("org/model", FILES)
    fake_hub.cuts["model.safetensors"] = [4000]
    fake_hub.ranges_supported = False
    assert (ensure_model(NAME) / "model.safetensors").read_bytes() == WEIGHTS


@pytest.mark.parametrize("file", ["model.safetensors", "config.json"])
def test_damaged_bytes_are_an_error(fake_hub: FakeHub, file: str) -> None:
    """The checksum of a large file is its SHA-256, that of a small one Git's hash."""
    fake_hub.repo("org/model", FILES)
    fake_hub.damages[file] = 1
    with pytest.raises(
        StorageError, match=rf"{file} of org/model .* checksum .*`rondo pull org/model` again"
    ):
        ensure_model(NAME)
    assert cached_model(NAME) is None
    assert not partial().exists()
    assert (ensure_model(NAME) / file).read_bytes() == FILES[file]


def test_a_damaged_partial_file_is_replaced(fake_hub: FakeHub) -> None:
    fake_hub.repo("org/model", FILES)
    partial().parent.mkdir(parents=True)
    partial().write_bytes(b"other bytes")
    assert (ensure_model(NAME) / "model.safetensors").read_bytes() == WEIGHTS


def test_concurrent_downloads_transfer_each_file_once(fake_hub: FakeHub) -> None:
    fake_hub.repo("org/model", FILES)
    with ThreadPoolExecutor(4) as pool:
        assert len(set(pool.map(ensure_model, [NAME] * 4))) == 1
    digest = hashlib.sha256(WEIGHTS).hexdigest()
    assert len(fake_hub.ranges(f"/cdn/{digest}/model.safetensors")) == 1


def test_progress_ends_at_the_total(fake_hub: FakeHub) -> None:
    fake_hub.repo("org/model", FILES)
    fake_hub.cuts["model.safetensors"] = [4000]
    seen: list[tuple[str, int, int]] = []
    ensure_model(NAME, lambda *state: seen.append(state))
    assert {stage for stage, _, _ in seen} == {"downloading"}
    assert seen[-1][1] == seen[-1][2] > len(WEIGHTS)
    assert all(done <= total for _, done, total in seen)


def test_the_token_is_not_sent_to_another_host(fake_hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", fake_hub.token)
    repo = fake_hub.repo("org/model", FILES)
    repo.gated = repo.private = True
    ensure_model(NAME)
    tokens = {(each.host, each.token) for each in fake_hub.requests}
    assert tokens == {("127.0.0.1", "Bearer hf_valid"), ("localhost", None)}


def test_revisions(fake_hub: FakeHub) -> None:
    repo = fake_hub.repo("org/model", FILES)
    old = repo.branches["main"]
    first = ensure_model(NAME)
    new = repo.commit({**FILES, "model.safetensors": WEIGHTS[::-1]})
    repo.branches["v2/final"] = new
    assert ensure_model(NAME) == first, "the cache needs no request"
    assert pull_model(NAME).name == new
    assert ensure_model(NAME).name == new
    for revision, commit in (("v2/final", new), (old, old), (old[:10], old)):
        name = hub_name(f"org/model@{revision}")
        assert name is not None
        assert ensure_model(name).name == commit
    assert [each.name for each in snapshots()] == ["org/model", f"org/model@{old[:12]}"]


def test_an_update_that_fails_leaves_the_older_commit(
    fake_hub: FakeHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    repo = fake_hub.repo("org/model", FILES)
    old = ensure_model(NAME)
    repo.commit({**FILES, "config.json": FILES["config.json"] + b"\n", "model.safetensors": WEIGHTS[::-1]})

    def refuse(folder: Path) -> None:
        raise InvalidRequest("before the weights")

    with pytest.raises(InvalidRequest, match="before the weights"):
        pull_model(NAME, check=refuse)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert ensure_model(NAME) == old


def test_removal_spares_contents_of_other_commits(fake_hub: FakeHub) -> None:
    repo = fake_hub.repo("org/model", FILES)
    first = ensure_model(NAME)
    repo.commit({**FILES, "model.safetensors": WEIGHTS[::-1]})
    second = pull_model(NAME)
    remove_snapshot(first)
    assert [each.path for each in snapshots()] == [second]
    assert (second / "tokenizer.json").read_bytes() == FILES["tokenizer.json"]
    remove_snapshot(second)
    assert snapshots() == []
    assert not second.parent.parent.exists()


def test_the_config_alone(fake_hub: FakeHub) -> None:
    fake_hub.repo("org/model", FILES)
    assert names_in(pull_config(NAME)) == {"config.json"}
    assert cached_model(NAME) is None
    assert (ensure_model(NAME) / "model.safetensors").is_file()


def test_offline(fake_hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_hub.repo("org/model", FILES)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(Unavailable, match="Unset it and run `rondo pull org/model`"):
        ensure_model(NAME)
    assert fake_hub.requests == []
    monkeypatch.delenv("HF_HUB_OFFLINE")
    folder = ensure_model(NAME)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert ensure_model(NAME) == folder


def test_a_cache_filled_by_huggingface_hub_is_used(
    fake_hub: FakeHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    from huggingface_hub import snapshot_download

    fake_hub.repo("org/model", FILES)
    theirs = snapshot_download("org/model", endpoint=fake_hub.url, cache_dir=hub_cache())
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert str(ensure_model(NAME)) == theirs


def test_a_cache_without_a_tokenizer_is_completed(fake_hub: FakeHub) -> None:
    from huggingface_hub import snapshot_download

    fake_hub.repo("org/model", FILES)
    wanted = ["config.json", "model.safetensors"]
    snapshot_download("org/model", endpoint=fake_hub.url, cache_dir=hub_cache(), allow_patterns=wanted)
    fake_hub.requests.clear()
    assert (ensure_model(NAME) / "tokenizer.json").is_file()
    assert fake_hub.ranges("/model.safetensors") == []


def error_of() -> RondoError:
    with pytest.raises(RondoError) as caught:
        ensure_model(NAME)
    return caught.value


def test_missing_and_private_repositories(fake_hub: FakeHub) -> None:
    error = error_of()
    assert isinstance(error, NotFound)
    assert "There is no model 'org/model'" in error.message
    assert "HF_TOKEN" in error.message
    fake_hub.repo("org/model", FILES).private = True
    assert isinstance(error_of(), NotFound)


def test_a_gated_repository(fake_hub: FakeHub) -> None:
    fake_hub.repo("org/model", FILES).gated = True
    error = error_of()
    assert isinstance(error, Forbidden)
    assert f"request access at {fake_hub.url}/org/model" in error.message


def test_a_wrong_token(fake_hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_hub.repo("org/model", FILES)
    monkeypatch.setenv("HF_TOKEN", "hf_wrong")
    error = error_of()
    assert isinstance(error, Unauthorized)
    assert "wrong or expired" in error.message


def test_a_wrong_revision(fake_hub: FakeHub) -> None:
    fake_hub.repo("org/model", FILES)
    with pytest.raises(NotFound, match="org/model has no revision 'v9'"):
        ensure_model(HubName("model", "org/model", "v9"))


@pytest.mark.parametrize(("status", "kind"), [(403, Forbidden), (429, Unavailable), (500, Unavailable)])
def test_refused_requests(fake_hub: FakeHub, status: int, kind: type[RondoError]) -> None:
    fake_hub.status = status
    assert isinstance(error_of(), kind)


def test_no_network(fake_hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{free_port()}")
    error = error_of()
    assert isinstance(error, Unavailable)
    assert "cannot be reached" in error.message
    assert "HF_ENDPOINT" in error.message


def test_a_full_disk_is_an_error_before_the_download(
    fake_hub: FakeHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_hub.repo("org/model", FILES)
    pull_config(NAME)
    free = shutil.disk_usage("/")._replace(free=2000)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: free)
    with pytest.raises(StorageError, match=r"No space left .* needed, 2\.0 KB free"):
        ensure_model(NAME)
    assert not partial().exists()


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"config.json": b"{}", "pytorch_model.bin": b"p"}, r"PyTorch pickles only.*org/model@refs/pr/1"),
        (
            {"adapter_config.json": b'{"base_model_name_or_path": "org/base"}'},
            "is an adapter.*rondo serve org/base --lora-modules model=org/model",
        ),
        ({"README.md": b"empty"}, r"has no config\.json"),
        ({"config.json": b"{}"}, "has no weights in safetensors format"),
    ],
)
def test_repositories_without_a_loadable_model(
    fake_hub: FakeHub, files: dict[str, bytes], message: str
) -> None:
    fake_hub.repo("org/model", files)
    with pytest.raises(ModelError, match=message):
        ensure_model(NAME)


def test_paths_out_of_the_repository_are_ignored(fake_hub: FakeHub) -> None:
    fake_hub.repo("org/model", {**FILES, "additional_chat_templates/../../../x.jinja": b"x", "/y.json": b"y"})
    assert names_in(ensure_model(NAME)) == names_in(pull_model(NAME))
    assert not list(hub_cache().rglob("x.jinja"))


def test_a_digest_that_is_a_path_is_refused(fake_hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub_server, "_git_hash", lambda data: "../../escaped")
    fake_hub.repo("org/model", FILES)
    with pytest.raises(Unavailable, match="no valid checksums"):
        ensure_model(NAME)


@pytest.mark.parametrize(
    "text",
    ["model", "./org/model", "org/model/more", "org/model@", "-org/model", "org/..", "a b/c"],
)
def test_other_texts_are_no_names(text: str) -> None:
    assert hub_name(text) is None
