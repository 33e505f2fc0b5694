"""Models of this machine for `rondo up`: names, hashes, adapters, and estimates of memory."""

import json
from pathlib import Path

import pytest

from rondo.base.errors import RondoError
from rondo.cli.service.catalog import MachineCatalog, shown_name
from rondo.engine.config import EngineConfig
from support.served import write_model

NAMED, PLAIN, TUNED = ("1" * 64, "2" * 64, "3" * 64)


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("catalog")
    write_model(home / "models" / "toy")
    for job, origin in (
        (NAMED, {"name": "mine"}),
        (PLAIN, {}),
        (TUNED, {"base": str(home / "models" / "toy")}),
    ):
        folder = home / "jobs" / job
        if job != TUNED:
            write_model(folder / "export")
        else:
            (folder / "adapter").mkdir(parents=True)
            (folder / "adapter" / "adapter_config.json").write_text("{}")
        (folder / "spec.json").write_text("{}")
        (folder / "origin.json").write_text(json.dumps(origin))
    (home / "jobs" / ("4" * 64)).mkdir()
    (home / "jobs" / ("4" * 64) / "spec.json").write_text("{}")
    return home


@pytest.fixture
def catalog(home: Path, monkeypatch: pytest.MonkeyPatch) -> MachineCatalog:
    monkeypatch.setenv("RONDO_HOME", str(home))
    monkeypatch.setenv("HF_HUB_CACHE", str(home / "hub"))
    return MachineCatalog(EngineConfig())


def test_models_and_finished_jobs_are_listed(catalog: MachineCatalog, home: Path) -> None:
    found = {model.name: model for model in catalog.models()}
    assert set(found) == {"toy", "mine", PLAIN, TUNED}
    assert found["mine"].names == ("mine", NAMED)
    assert found["mine"].source == str(home / "jobs" / NAMED / "export")
    assert (found[PLAIN].names, found[PLAIN].adapter) == ((PLAIN,), None)
    assert (found[TUNED].source, found[TUNED].base) == ("", str(home / "models" / "toy"))
    assert found[TUNED].adapter == str(home / "jobs" / TUNED / "adapter")


def test_sources_of_the_command_line(catalog: MachineCatalog, home: Path) -> None:
    toy = str(home / "models" / "toy")
    assert [catalog.source_of(text) for text in ("toy", toy)] == [toy, toy]
    exported = str(home / "jobs" / NAMED / "export")
    assert [catalog.source_of(text) for text in ("mine", NAMED, NAMED[:12], exported)] == [exported] * 4
    assert [shown_name(source) for source in (toy, exported)] == ["toy", "mine"]
    assert catalog.source_of("nobody/elsewhere") == "nobody/elsewhere"
    assert shown_name("nobody/elsewhere") == "nobody/elsewhere"


def test_the_need_of_an_engine(catalog: MachineCatalog, home: Path) -> None:
    toy = str(home / "models" / "toy")
    need = catalog.need(toy)
    assert 0 < need.weights < need.total
    assert need.cache < 2 << 30
    half = MachineCatalog(EngineConfig(dtype="bfloat16")).need(toy)
    assert (2 * half.weights, half.cache < need.cache) == (need.weights, True)
    bounded = MachineCatalog(EngineConfig(kv_cache_bytes=12345))
    assert (bounded.need(toy).cache, bounded.need(toy).flags) == (12345, ())
    on_gpu = MachineCatalog(EngineConfig())
    on_gpu.kind = "cuda"
    assert on_gpu.need(toy).flags == (f"--engine.kv_cache_bytes={on_gpu.need(toy).cache}",)
    with pytest.raises(RondoError):
        catalog.need(str(home / "nowhere"))
