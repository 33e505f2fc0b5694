import errno
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from rondo.base.errors import Conflict, InvalidRequest, ModelError, NotFound
from rondo.cli.main import main
from rondo.models import load, new, save, store
from rondo.models.files import checkpoint

CONFIG = {
    "model_type": "llama",
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 24,
    "vocab_size": 32,
    "max_position_embeddings": 64,
}


@pytest.fixture(autouse=True)
def own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("RONDO_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    save(new(CONFIG), tmp_path / "source", max_shard_bytes=4096)
    return tmp_path / "source"


def test_names_before_paths(own_home: Path, folder: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(folder.parent)
    assert store.resolve("source") == folder
    store.import_model(folder, "source")
    assert store.resolve("source") == own_home / "models/source"
    assert store.resolve("./source") == folder
    assert store.resolve(folder) == folder
    assert store.list_models() == [("source", own_home / "models/source")]


def test_unknown_name_lists_the_nearest(folder: Path, tmp_path: Path):
    for name in ("demo-small", "demo-large", "other"):
        store.import_model(folder, name)
    with pytest.raises(NotFound, match="Did you mean demo-small or demo-large"):
        store.resolve("demo-smal")
    with pytest.raises(NotFound, match="rondo model list"):
        store.resolve("###")
    (tmp_path / "empty").mkdir()
    with pytest.raises(NotFound, match=r"without config\.json"):
        store.resolve(tmp_path / "empty")


def test_a_jobs_hash_names_what_it_has_left(own_home: Path, folder: Path, monkeypatch: pytest.MonkeyPatch):
    done, other, begun = "abcdef" + "0" * 58, "abcdef" + "1" * 58, "123456" + "a" * 58
    for name in (done, other, begun):
        job = own_home / "jobs" / name
        job.mkdir(parents=True)
        (job / "spec.json").write_text("{}")
    left = shutil.copytree(folder, own_home / "jobs" / done / "export")
    for name in (done, "abcdef0", "ABCDEF00"):
        assert store.resolve(name) == left
    assert store.name_of(left) == done
    assert store.name_of(folder) == "source"
    monkeypatch.chdir(own_home / "jobs")
    assert store.resolve(done) == left
    with pytest.raises(InvalidRequest, match=f"matches 2 jobs: {done}, {other}"):
        store.resolve("abcdef")
    with pytest.raises(NotFound, match="Job 123456aaaaaa has left no model so far"):
        store.resolve("123456")
    for unknown in ("abcde", "fffffff", "abcdef0x"):
        with pytest.raises(NotFound, match="no such folder or job"):
            store.resolve(unknown)
    store.import_model(folder, "abcdef0")
    assert store.resolve("abcdef0") == own_home / "models/abcdef0"


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "../x", ".hidden", "a b", "a\n", "x" * 129])
def test_names_that_are_not(name: str):
    with pytest.raises(InvalidRequest):
        store.place(name)


def test_files_come_along_and_foreign_weights_do_not(folder: Path, own_home: Path):
    (folder / "README.md").write_text("about")
    (folder / "generation_config.json").write_text("{}")
    (folder / "pytorch_model.bin").write_text("old weights")
    (folder / ".cache").mkdir()
    (folder / ".hidden").write_text("x")
    (folder / "additional_chat_templates").mkdir()
    (folder / "additional_chat_templates" / "rag.jinja").write_text("{{ 1 }}")
    store.import_model(folder, "m")
    target = own_home / "models/m"
    assert sorted(str(p.relative_to(target)) for p in target.rglob("*") if p.is_file()) == [
        "README.md",
        "additional_chat_templates/rag.jinja",
        "config.json",
        "generation_config.json",
        *(f"model-{i + 1:05d}-of-00006.safetensors" for i in range(6)),
        "model.safetensors.index.json",
    ]


def test_import_then_export_keeps_every_byte(folder: Path, own_home: Path, tmp_path: Path):
    """Shards, their index, and a config.json written by another hand."""
    (folder / "config.json").write_text(json.dumps(CONFIG, separators=(",", ":")))
    store.import_model(folder, "m")
    store.export_model("m", tmp_path / "export")
    files = {path.name: path.read_bytes() for path in folder.iterdir()}
    assert {path.name: path.read_bytes() for path in (tmp_path / "export").iterdir()} == files


def test_existing_is_refused_before_any_work(folder: Path, monkeypatch: pytest.MonkeyPatch):
    store.import_model(folder, "m")
    monkeypatch.setattr(checkpoint, "check", lambda *_: pytest.fail("must not look"))
    with pytest.raises(Conflict):
        store.import_model(folder, "m")
    with pytest.raises(InvalidRequest, match="is the model itself"):
        store.import_model(store.resolve("m"), "m", replace=True)


def test_only_a_model_is_replaced(folder: Path, tmp_path: Path):
    store.import_model(folder, "m")
    (tmp_path / "letters" / "old").mkdir(parents=True)
    for place, why in ((store.resolve("m").parent, "has it within"), (tmp_path / "letters", "other things")):
        before = sorted(place.iterdir())
        with pytest.raises(InvalidRequest, match=why):
            store.export_model("m", place, replace=True)
        assert sorted(place.iterdir()) == before


def test_progress_counts_every_byte(folder: Path):
    seen: list[tuple[str, int, int]] = []
    store.import_model(folder, "m", report=lambda *step: seen.append(step))
    total = sum(path.stat().st_size for path in folder.iterdir())
    steps = [(done, whole) for name, done, whole in seen if name == "copying"]
    assert steps[-1] == (total, total)
    assert [done for done, _ in steps] == sorted(done for done, _ in steps)
    assert seen[-1] == ("flushing to disk", 0, 0)


def test_facts_of_a_sharded_folder(folder: Path):
    facts = store.facts(folder)
    model = new(CONFIG)
    assert len(list(folder.glob("*.safetensors"))) > 1
    assert facts.parameters == sum(parameter.numel() for parameter in model.parameters())
    assert facts.dtypes == ("float32",)
    assert facts.weight_bytes == 4 * facts.parameters
    assert facts.disk_bytes > facts.weight_bytes
    assert not facts.has_tokenizer


def test_an_unreadable_folder_does_not_hide_the_others(
    folder: Path, own_home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    for name in ("fine", "shut"):
        store.import_model(folder, name)
    stat = Path.stat

    def refuse(path: Path, **options: bool) -> os.stat_result:
        if path.parent.name == "shut":
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        return stat(path, **options)

    monkeypatch.setattr(Path, "stat", refuse)
    assert [name for name, _ in store.list_models()] == ["fine", "shut"]
    assert main(["model", "list"]) == 0
    _, fine, shut = capsys.readouterr().out.splitlines()
    assert fine.startswith("fine  ")
    assert shut == f"shut  broken: cannot read {own_home}/models/shut/config.json: Permission denied"
    with pytest.raises(ModelError, match="Permission denied"):
        load(store.resolve("shut"))


def test_naming_and_listing_models_needs_no_torch(folder: Path):
    store.import_model(folder, "m")
    code = (
        "import sys\nfrom rondo.cli.main import main\nfrom rondo.models import store\n"
        "main(['model', 'list']); store.resolve('m'); print('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[1].startswith("m     ")
    assert done.stdout.splitlines()[-1] == "False"
