"""Rows of the registry: names, promotion and rollback, aliases, owners, facts of folders."""

import asyncio
import json
from dataclasses import replace
from pathlib import Path

import pytest

from rondo.base.errors import Conflict, Forbidden, InvalidRequest, NotFound
from rondo.base.storage.home import jobs_dir
from rondo.control.jobs.registry.book import ModelRegistry
from rondo.control.jobs.registry.facts import files_of, model_of_folder, model_of_job
from rondo.control.jobs.registry.rows import NewModel
from rondo.control.store.store import Store
from rondo.jobs.job import Job

A, B = "a" * 64, "b" * 64


@pytest.fixture
def models(store: Store) -> ModelRegistry:
    return ModelRegistry(store)


def new(job: str = A, step: int | None = None, name: str = "reader", **facts: object) -> NewModel:
    return replace(NewModel(name, job, "lora", f"/jobs/{job}/adapter", step, base="toy"), **facts)  # type: ignore[arg-type]


def found(models: ModelRegistry, name: str) -> str:
    return models.find(name).result().id


def test_names_hashes_steps_and_latest(models: ModelRegistry) -> None:
    models.add(new(), "me").result()
    models.add(new(step=50), "me").result()
    models.add(new(B, name="other"), "me").result()
    models.add(new("c" * 64, name="judge", kind="reward"), "me").result()
    asked = {
        "latest": B,
        "reader": f"{A}@50",
        "reader@50": f"{A}@50",
        A: A,
        A[:8]: A,
        f"{A[:8]}@50": f"{A}@50",
    }
    assert {name: found(models, name) for name in asked} == asked
    for wrong in ("none", f"{A}@51", "ddddddd"):
        with pytest.raises(NotFound):
            found(models, wrong)
    models.add(new("a" * 63 + "b"), "me").result()
    with pytest.raises(InvalidRequest, match="more characters"):
        found(models, "aaaaaa")
    _, targets, ids = models.snapshot().result()
    assert (targets["latest"], targets["other"], "judge" in targets, len(ids)) == (
        "a" * 63 + "b",
        B,
        False,
        5,
    )


def test_jobs_of_one_hash_add_their_names(models: ModelRegistry) -> None:
    async def add(name: str, owner: str) -> str:
        return (await models.add_of_job(new(name=name), owner)).id

    assert [asyncio.run(add(*each)) for each in (("ft:a", "me"), ("ft:b", "other"), ("ft:c", "me"))] == [
        A
    ] * 3
    assert asyncio.run(add(A[:12], "local")) == A
    assert [found(models, name) for name in ("ft:a", "ft:b", "ft:c")] == [A] * 3
    owners = {each.alias: each.owner for each in models.aliases().result()}
    assert owners == {"ft:b": "other", "ft:c": "me"}
    assert not models.remove_result(A, "ft:a", ["ft:b", "ft:c"]).result()
    row = models.find("ft:b").result()
    assert (row.id, row.name, row.owner) == (A, "ft:b", "other")
    assert [each.alias for each in models.aliases().result()] == ["ft:c"]
    with pytest.raises(NotFound):
        found(models, "ft:a")
    models.add(new(B, name="taken"), "me").result()
    assert asyncio.run(add("taken", "other")) == A, "a name of another model is left alone"
    assert found(models, "taken") == B
    assert not models.remove_result(A, "ft:c", ["ft:b"]).result()
    models.promote(A, None).result()
    models.point("prod", A, "me").result()
    for others in ([], ["ft:c"]):
        with pytest.raises(Conflict, match="answers as"):
            models.remove_result(A, "ft:b", others).result()
    assert {each.alias: each.promoted for each in models.aliases().result()} == {"ft:b": True, "prod": False}
    models.drop_alias("ft:b", None).result()
    models.drop_alias("prod", None).result()
    assert models.remove_result(A, "ft:b", []).result()
    assert models.remove_result(A, "ft:b", []).result()
    with pytest.raises(NotFound):
        found(models, A)


def test_promotion_rollback_and_aliases(models: ModelRegistry) -> None:
    first, second = (models.add(new(job), "me").result().id for job in (A, B))
    assert found(models, "reader") == second
    models.promote(first, "me").result()
    assert found(models, "reader") == first
    models.promote(second, "me").result()
    assert {row.id: row.stage for row in models.all().result()} == {first: "archived", second: "production"}
    assert models.rollback("reader", "me").result().id == first
    assert {row.id: row.stage for row in models.all().result()} == {first: "production", second: "archived"}
    with pytest.raises(Conflict, match="no other model before"):
        models.rollback("reader", "me").result()
    stamp = models.stamp().result()
    models.point("live", second, "me").result()
    assert models.stamp().result() != stamp
    models.point("live", first, "me").result()
    (alias, promoted) = models.aliases().result()
    assert (alias.alias, alias.model, alias.previous, promoted.promoted) == ("live", first, (second,), True)
    assert models.rollback("live", "me").result().id == second
    with pytest.raises(Conflict, match="answers as 'live'"):
        models.remove(second, "me").result()
    models.drop_alias("live", "me").result()
    models.remove(second, "me").result()
    with pytest.raises(NotFound):
        found(models, "live")


def test_names_belong_to_their_owner(models: ModelRegistry) -> None:
    models.add(new(), "me").result()
    models.point("live", A, "me").result()
    for taken in ("reader", "live"):
        with pytest.raises(Conflict):
            models.add(new(B, name=taken), "you").result()
    for wrong in ("reader", "latest", "abcdef", "a/b", ""):
        with pytest.raises((Conflict, InvalidRequest)):
            models.point(wrong, A, "me").result()
    for act in (models.promote(A, "you"), models.remove(A, "you"), models.drop_alias("live", "you")):
        with pytest.raises(Forbidden):
            act.result()
    with pytest.raises(Forbidden):
        models.point("live", A, "you").result()
    assert models.promote(A, None).result().stage == "production"


def test_a_second_registration_updates_facts_and_keeps_the_digest(models: ModelRegistry) -> None:
    models.add(new(), "me").result()
    models.note(A, {"x": (3, "0" * 64)}).result()
    row = models.add(new(lineage={"data": "d"}), "me").result()
    assert (row.bytes, row.lineage, row.files) == (3, {"data": "d"}, {"x": (3, "0" * 64)})
    assert models.unhashed().result() == []


def test_facts_of_a_job_and_of_a_folder(tmp_path: Path) -> None:
    job = Job(jobs_dir() / A)
    job.adapter.mkdir(parents=True)
    (job.adapter / "adapter_config.json").write_text(
        '{"peft_type": "LORA", "base_model_name_or_path": "toy"}'
    )
    spec = {"kind": "sft", "dataset": "d" * 64, "config": {"lr": 0.1, "adapter": {"kind": "lora"}}}
    (job.path / "spec.json").write_text(json.dumps(spec))
    (job.path / "origin.json").write_text('{"model": "toy", "name": "mine"}')
    (job.path / "metrics.jsonl").write_text('{"step": 1, "loss": 2.0}\n{"step": 2, "loss": 1.0}\n')
    made, checkpoint = model_of_job(job), model_of_job(job, 1)
    assert (made.id, made.name, made.kind, made.base) == (A, "mine", "lora", "toy")
    assert (made.lineage["data"], made.lineage["metrics"]) == ("d" * 64, {"loss": 1.0})
    assert (checkpoint.id, checkpoint.lineage["metrics"]) == (f"{A}@1", {"loss": 2.0})
    imported = model_of_folder(job.adapter, "copy")
    assert (imported.files, imported.base, len(imported.job)) == (files_of(job.adapter), "toy", 64)
    (tmp_path / "scorer").mkdir()
    (tmp_path / "scorer" / "config.json").write_text('{"architectures": ["LlamaForSequenceClassification"]}')
    assert model_of_folder(tmp_path / "scorer", "scorer").kind == "reward"
    with pytest.raises(NotFound, match="is no model"):
        model_of_folder(tmp_path, "none")


def test_hashing_passes_over_models_without_files(models: ModelRegistry) -> None:
    for number in range(12):
        models.add(NewModel(f"n{number}", f"{number:064x}", "full", "/none"), "me").result()
    first = models.unhashed(0).result()
    assert [row.name for row in first] == [f"n{number}" for number in range(10)]
    assert [row.name for row in models.unhashed(first[-1].number).result()] == ["n10", "n11"]
