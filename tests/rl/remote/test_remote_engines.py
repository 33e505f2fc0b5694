"""Engines behind URLs: the same rollouts, the learner's weights, and engines that are killed in the middle."""

import json
import sys
import threading
from collections.abc import AsyncGenerator, Iterator
from pathlib import Path

import pytest
import torch

import rondo
from rondo import models
from rondo.base.errors import ConfigError, Conflict, MissingExtra, Overloaded, RondoError, Unavailable
from rondo.client.types import GenerateRequest, TokenChunk
from rondo.models.files.mapping import to_hf
from rondo.rl import jobs
from rondo.rl.config import RlConfig
from rondo.rl.loop import Loop
from rondo.rl.remote import ray
from rondo.rl.remote.config import FarConfig, RayConfig
from rondo.rl.remote.servers import EngineClient
from rondo.rl.rollout.types import RlStep, SampleGroup
from rondo.rl.tasks.registry import find, task
from rondo.rl.tasks.types import AnyTask
from rondo.text.bpe import train_bpe
from rondo.train.config import AdapterConfig
from rondo.train.recipes import adapter
from support.far import Lengths, fleet_of
from support.forked import SERVE
from support.home import own_home
from support.nursery import Nursery
from support.ports import free_port
from support.served import ADMIN_KEY, Served, write_model
from support.tiny import tiny_model, tiny_tokenizer
from support.waiting import wait_until

CONFIG = RlConfig(
    prompts_per_step=4,
    samples_per_prompt=4,
    steps=4,
    lr=1e-2,
    eval_prompts=8,
    max_tokens=8,
    tokens_per_microbatch=256,
    deterministic=True,
)


@pytest.fixture(scope="module")
def ground(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("ground") / "tiny")


@pytest.fixture(scope="module")
def nursery() -> Iterator[Nursery]:
    with Nursery(SERVE) as nursery:
        yield nursery


@pytest.fixture(scope="module")
def served(ground: Path, nursery: Nursery, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("served")
    server = Served(ground, folder, "--engine.deterministic=true", nursery=nursery).start().wait()
    yield server
    server.kill()


@pytest.fixture(autouse=True)
def key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RONDO_ADMIN_KEY", ADMIN_KEY)


def loop_of(
    *urls: str,
    folder: str = "",
    wait: float = 240,
    goal: AnyTask | None = None,
    transport: str = "auto",
    **changes: object,
) -> tuple[Loop, list[RlStep]]:
    engine = FarConfig(url=urls, folder=folder, wait=wait, transport=transport, deltas=transport == "http")
    config = CONFIG.model_copy(update={"engine": engine, **changes})
    loop = Loop(tiny_model(), tiny_tokenizer(), goal or Lengths(), config)
    told: list[RlStep] = []
    loop.observers.append(told.append)
    return loop, told


def said(groups: list[SampleGroup]) -> list[object]:
    return [
        (sample.token_ids, sample.logprobs, sample.text, sample.finish_reason)
        for group in groups
        for sample in group.samples
    ]


@pytest.mark.parametrize(("temperature", "transport", "used"), [(1.0, "auto", "shm"), (0.7, "http", "http")])
def test_a_synchronous_run_is_the_one_in_place_bit_for_bit(
    served: Served, temperature: float, transport: str, used: str
) -> None:
    here, told = loop_of(temperature=temperature)
    far, other = loop_of(served.url, temperature=temperature, transport=transport)
    assert [engine.transport for engine in fleet_of(far).engines] == [used]
    metrics = [[loop.step() for _ in range(2)] for loop in (here, far)]
    held_out = here.evaluate(), far.evaluate()
    far.close()
    for mine, its in zip(told, other, strict=True):
        assert said(mine.groups) == said(its.groups)
    for mine, its in zip(*metrics, strict=True):
        assert its["logprob_diff_max"] == mine["logprob_diff_max"] == 0
        assert its["stale_max"] == 0
        assert (its["loss"], its["grad_norm"], its["reward"]) == (
            mine["loss"],
            mine["grad_norm"],
            mine["reward"],
        )
        assert its["engine/lost"] == its["engine/asked_again"] == 0
    assert held_out[0] == held_out[1]
    for own, theirs in zip(here.learner.model.parameters(), far.learner.model.parameters(), strict=True):
        assert torch.equal(own, theirs)


@pytest.mark.parametrize("mode", ["one_step_off", "async"])
def test_each_token_has_its_version_and_none_is_too_old(served: Served, mode: str) -> None:
    loop, told = loop_of(served.url, mode=mode, max_staleness=2)
    first = loop.version
    for _ in range(4):
        loop.step()
    loop.close()
    assert loop.version == first + 4
    for step in told:
        for made in (sample.versions for group in step.groups for sample in group.samples):
            assert made == sorted(made)
            assert all(0 <= step.version - version <= loop.config.staleness for version in made)
            if mode == "one_step_off":
                assert len(set(made)) == 1


def test_the_folder_of_a_version_goes_once_the_next_is_there(served: Served, tmp_path: Path) -> None:
    loop, _ = loop_of(served.url, folder=str(tmp_path), transport="folder")
    first = loop.version
    for done in range(2):
        assert [folder.name for folder in tmp_path.iterdir()] == [f"version_{first + done}"]
        loop.step()
    written = models.load(tmp_path / f"version_{loop.version}")
    for own, theirs in zip(loop.learner.model.parameters(), written.parameters(), strict=True):
        assert torch.equal(own, theirs)
    loop.close()
    assert not tmp_path.exists()


@pytest.fixture(scope="module")
def killed_often(
    ground: Path, nursery: Nursery, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Served]:
    server = Served(ground, tmp_path_factory.mktemp("mortal"), nursery=nursery).start()
    yield server
    server.kill()


@pytest.fixture
def mortal(killed_often: Served) -> Served:
    return killed_often.wait()


def test_an_engine_killed_while_it_generates_is_waited_for_and_has_the_weights_again(mortal: Served) -> None:
    """It comes back with the weights that it was started with."""
    loop, told = loop_of(mortal.url, max_tokens=200, tokens_per_microbatch=2048)
    loop.step()
    fleet = fleet_of(loop)

    def kill() -> None:
        wait_until(lambda: fleet.engines[0].requests)
        mortal.kill()
        mortal.start()

    killer = threading.Thread(target=kill)
    killer.start()
    metrics = loop.step()
    killer.join()
    assert metrics["engine/lost"] == 1
    assert metrics["engine/asked_again"] >= 1
    assert {version for group in told[1].groups for each in group.samples for version in each.versions} == {
        told[1].version
    }
    assert metrics["logprob_diff_max"] < 1e-4, "the learner's weights made them"
    assert loop.step()["engine/lost"] == 0
    loop.close()


def test_an_engine_killed_in_a_push_gets_that_version_when_it_is_back(
    mortal: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop, told = loop_of(mortal.url)
    finish, killed = EngineClient.finish_weight_update, []

    async def deadly(door: EngineClient, *given: object) -> dict[str, object]:
        if not killed:
            killed.append(loop.version)
            mortal.kill()
            mortal.start()
        return await finish(door, *given)  # type: ignore[arg-type]

    monkeypatch.setattr(EngineClient, "finish_weight_update", deadly)
    loop.step()
    assert killed == [told[0].version + 1]
    assert loop.step()["engine/lost"] == 1
    assert told[1].version == told[0].version + 1
    assert told[1].metrics["logprob_diff_max"] < 1e-4
    loop.close()


def test_with_two_engines_the_other_goes_on(served: Served, mortal: Served) -> None:
    loop, told = loop_of(served.url, mortal.url, max_tokens=100, tokens_per_microbatch=2048)
    fleet = fleet_of(loop)
    asked = {engine.url: 0 for engine in fleet.engines}
    for engine in fleet.engines:
        generate = engine.generate

        def counted(request, url=engine.url, generate=generate):  # type: ignore[no-untyped-def]
            asked[url] += 1
            return generate(request)

        engine.generate = counted  # type: ignore[method-assign]
    loop.step()
    assert all(asked.values())
    mortal.kill()
    back = threading.Thread(target=lambda: (wait_until(lambda: not fleet.engines[1].healthy), mortal.start()))
    back.start()
    loop.step()
    back.join()
    assert [engine.version for engine in fleet.engines] == [loop.version] * 2
    assert told[1].metrics["engine/lost"] == 1
    loop.close()


def test_who_pushes_to_the_same_engine_is_found_out(served: Served) -> None:
    loop, _ = loop_of(served.url)
    other, _ = loop_of(served.url)
    with pytest.raises(Conflict, match="takes weights from one learner only"):
        loop.step()
    for each in (loop, other):
        each.close()


def test_what_a_trainer_left_that_was_killed_in_a_push_is_over(served: Served, ground: Path) -> None:
    with rondo.Client(served.url, admin_key=ADMIN_KEY) as client:
        client.pause("keep")
        client.start_weight_update()
        client.update_weights({"path": str(ground), "version": 10**6})
        loop, _ = loop_of(served.url)
        assert loop.step()["logprob_diff_max"] == 0
        loop.close()
        assert client.is_paused() == {"is_paused": False}
        assert not client.weight_info()["updating"]


def test_episodes_are_played_with_it(served: Served) -> None:
    changes = {"prompts_per_step": 2, "max_tokens": 4, "tokens_per_microbatch": 512}
    told = []
    for urls in ((), (served.url,)):
        loop, steps = loop_of(*urls, goal=find("guess"), **changes)
        loop.step()
        loop.close()
        told.append(steps[0])
    assert said(told[0].groups) == said(told[1].groups)
    assert all(sample.token_ids for group in told[1].groups for sample in group.samples)


def test_a_prompt_waits_where_the_queue_is_full_but_not_for_ever(served: Served) -> None:
    loop, _ = loop_of(served.url, wait=0.5)
    (engine,), refused = fleet_of(loop).engines, []
    generate = engine.generate

    async def full(request: GenerateRequest) -> AsyncGenerator[TokenChunk, None]:
        refused.append(request)
        raise Overloaded("no room")
        yield

    engine.generate = full  # type: ignore[method-assign]
    with pytest.raises(Overloaded, match="no room"):
        loop.step()
    loop.close()
    assert len(refused) > 4
    loop, _ = loop_of(served.url)
    (engine,) = fleet_of(loop).engines
    generate, refused = engine.generate, []
    engine.generate = lambda request: (full if len(refused) < 6 else generate)(request)  # type: ignore[method-assign]
    metrics = loop.step()
    loop.close()
    assert len(refused) == 6
    assert metrics["engine/lost"] == metrics["engine/asked_again"] == 0


def test_an_engine_that_is_not_there_is_said_to_be() -> None:
    with pytest.raises(
        ConfigError, match=r"no answer from .*Start the engine first: `rondo serve MODEL"
    ) as caught:
        loop_of(f"http://127.0.0.1:{free_port()}")
    assert caught.value.param == "rl.engine.url"


def test_a_job_that_finds_no_engine_has_failed(
    ground: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RONDO_HOME", str(own_home(tmp_path)))
    plan = jobs.plan(job_config(ground, f"http://127.0.0.1:{free_port()}"))
    with pytest.raises(ConfigError, match="Start the engine first"):
        jobs.run(plan)
    assert plan.job.status()["state"] == "failed"
    assert "Start the engine first" in plan.job.status()["reason"]


def test_an_engine_without_the_key_is_refused(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RONDO_ADMIN_KEY")
    with pytest.raises(ConfigError, match="set RONDO_ADMIN_KEY to the value of"):
        loop_of(served.url)
    monkeypatch.setenv("RONDO_ADMIN_KEY", "wrong")
    with pytest.raises(RondoError, match="admin key"):
        loop_of(served.url)


def test_an_engine_of_another_model_is_refused(served: Served) -> None:
    engine = FarConfig(url=(served.url,))
    config = CONFIG.model_copy(update={"engine": engine})
    with pytest.raises(ConfigError, match=r"cannot take the policy's weights: .* is another model"):
        Loop(tiny_model(num_hidden_layers=1), tiny_tokenizer(), task("reverse"), config)
    other = train_bpe(["quite other words in it, so that they are cut elsewhere"] * 9, 300)
    with pytest.raises(ConfigError, match="has another tokenizer than the policy"):
        Loop(tiny_model(), other, task("reverse"), config)


def test_engines_are_elsewhere_or_placed_by_ray_and_not_both() -> None:
    with pytest.raises(ValueError, match="leave one of them out"):
        RlConfig(engine=FarConfig(url=("http://a",)), ray=RayConfig(engines=1))


def test_without_ray_it_is_said_what_to_install(
    ground: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RONDO_HOME", str(own_home(tmp_path)))
    monkeypatch.setitem(sys.modules, "ray", None)
    plan = jobs.plan(CONFIG.model_copy(update={"model": str(ground), "ray": RayConfig(engines=1)}))
    with pytest.raises(MissingExtra, match=r"pip install 'rondo-lab\[ray\]'"):
        ray.run(plan)


@pytest.mark.parametrize(
    ("url", "message"),
    [("127.0.0.1:8001", "write it as http"), ("http://a,http://a", "named twice")],
)
def test_what_is_no_url_is_refused(url: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        FarConfig(url=tuple(url.split(",")))


def job_config(ground: Path, url: str, **changes: object) -> RlConfig:
    return CONFIG.model_copy(
        update={"model": str(ground), "save_every": 1, "engine": FarConfig(url=(url,), wait=0.5), **changes}
    )


def test_a_run_whose_engine_stays_away_stops_and_goes_on(
    ground: Path, mortal: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RONDO_HOME", str(own_home(tmp_path / "home")))
    plan = jobs.plan(job_config(ground, mortal.url))

    def end(step: int, metrics: object) -> None:
        if step == 2:
            mortal.kill()

    with pytest.raises(Unavailable, match=r"has not come back for 0.5 s \(rl.engine.wait\)"):
        jobs.run(plan, end)
    assert plan.job.status()["state"] == "failed"
    assert "Restart the engine" in plan.job.status()["reason"]
    mortal.start().wait()
    done: list[int] = []
    jobs.run(plan, lambda step, metrics: done.append(step))
    assert done == [3, 4]
    assert not (plan.job.path / "weights").exists()
    rows = [json.loads(line) for line in (plan.job.path / "metrics.jsonl").open()]
    assert [row["step"] for row in rows] == [0, 1, 2, 3, 4]


def test_a_lora_is_pushed_added_up_and_a_tokenformer_is_refused(served: Served, ground: Path) -> None:
    lora = AdapterConfig(kind="lora", r=4, alpha=8)
    with pytest.raises(ConfigError, match="a Tokenformer cannot be added up"):
        jobs.plan(job_config(ground, served.url, adapter=AdapterConfig(kind="tokenformer")))
    model = tiny_model()
    adapter.put_on(model, lora, seed=0, base="tiny")
    config = CONFIG.model_copy(update={"engine": FarConfig(url=(served.url,)), "adapter": lora})
    loop = Loop(model, tiny_tokenizer(), task("reverse"), config)
    before = {name: tensor.clone() for name, tensor in to_hf(model)}
    for _ in range(2):
        assert loop.step()["logprob_diff_max"] < 1e-4
    assert all(torch.equal(tensor, before[name]) for name, tensor in to_hf(model)), "the base stays"
    loop.close()
