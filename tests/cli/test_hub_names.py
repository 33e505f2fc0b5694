"""`rondo pull` and the verbs that take names of the Hugging Face Hub, against a hub on loopback."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from rondo import LLM, models
from rondo.cli.main import main
from rondo.hub.cache import hub_cache
from rondo.models.files.gguf.export import export_gguf
from rondo.models.store import list_pulled, name_of, resolve
from support.adapters import write_lora
from support.forks import inner, python
from support.hub import FakeHub, fake_hub
from support.served import SOURCES, Served, write_model
from support.waiting import wait_until

__all__ = ["fake_hub"]

NAME = "Tiny/Model"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("made") / "model")


@pytest.fixture
def hub(fake_hub: FakeHub, folder: Path) -> FakeHub:
    fake_hub.repo(NAME, folder)
    return fake_hub


def pulling() -> subprocess.Popen[str]:
    command = [str(python()), "-m", "rondo.cli", "pull", NAME]
    environment = {**os.environ, "PYTHONPATH": str(SOURCES)}
    return subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True)


def test_pull_and_answer(hub: FakeHub, capsys: pytest.CaptureFixture[str], folder: Path) -> None:
    assert main(["pull", NAME]) == 0
    out, progress = capsys.readouterr()
    commit = hub.repos[NAME].branches["main"]
    assert f"{NAME} (" in out
    assert f"commit {commit[:12]}) is in\n{hub_cache()}" in out
    assert f"rondo serve {NAME}" in out
    assert f"{NAME}: downloading done" in progress
    hub.requests.clear()
    (by_name,), (by_folder,) = (LLM(model).generate(["hello"]) for model in (NAME, str(folder)))
    assert by_name.outputs[0].token_ids == by_folder.outputs[0].token_ids
    assert hub.requests == []


def test_serve_downloads_and_keeps_the_typed_name(hub: FakeHub, tmp_path: Path) -> None:
    served = Served(NAME, tmp_path / "served").start()
    try:
        served.wait()
        assert [each["id"] for each in httpx.get(f"{served.url}/v1/models").json()["data"]] == [NAME]
        body = {"model": NAME, "prompt": "hello", "max_tokens": 3}
        answer = httpx.post(f"{served.url}/v1/completions", json=body, timeout=60).json()
        assert answer["model"] == NAME
    finally:
        served.kill()


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
def test_a_killed_pull_is_continued(hub: FakeHub, how: signal.Signals) -> None:
    weights = hub.repos[NAME].commits[hub.repos[NAME].branches["main"]]["model.safetensors"]
    partial = hub_cache() / "models--Tiny--Model/blobs" / f"{hashlib.sha256(weights).hexdigest()}.incomplete"
    hub.stalls["model.safetensors"] = 40_000
    with pulling() as first:
        wait_until(lambda: partial.exists() and partial.stat().st_size)
        os.kill(inner(first.pid), how)
        hub.release.set()
        assert "Traceback" not in first.communicate(timeout=60)[1]
        assert first.returncode in (-how, 130)
    hub.requests.clear()
    with pulling() as second:
        second.communicate(timeout=60)
        assert second.returncode == 0
    assert (resolve(NAME) / "model.safetensors").read_bytes() == weights
    begins = [each or "bytes=0-" for each in hub.ranges("/model.safetensors")]
    assert all(int(each.removeprefix("bytes=").rstrip("-")) > 0 for each in begins)


def test_plan_downloads_the_config_only(hub: FakeHub, capsys: pytest.CaptureFixture[str]) -> None:
    main(["plan", NAME])
    assert capsys.readouterr().out.startswith(f"{NAME}: ")
    assert {Path(each.path).name for each in hub.requests if "resolve" in each.path} == {"config.json"}


def test_prepare_downloads_the_tokenizer_only(
    hub: FakeHub, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    hub.repo("datasets/tiny/text", {"train.jsonl": b'{"text": "hello"}\n' * 50})
    out = str(tmp_path / "shards")
    arguments = ["tiny/text", "--tokenizer", NAME, "--out", out, "--workers", "1", "--json"]
    assert main(["data", "prepare", *arguments]) == 0
    assert json.loads(capsys.readouterr().out)["documents"] == 50
    assert hub.ranges("/model.safetensors") == []


def test_train_records_the_commit(hub: FakeHub, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    turns = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "hello"}]
    hub.repo("datasets/tiny/talk", {"train.jsonl": json.dumps({"messages": turns}).encode()})
    arguments = ["--model", NAME, "--data", "tiny/talk:train", "--train.steps=1", "--train.device=cpu"]
    assert main(["train", "sft", *arguments]) == 0
    (origin,) = (tmp_path / "rondo" / "jobs").glob("*/origin.json")
    told = json.loads(origin.read_text())
    assert (told["model"], told["revision"]) == (NAME, hub.repos[NAME].branches["main"])
    assert told["data"] == "tiny/talk:train"


def test_rl_on_a_data_set(hub: FakeHub, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sums = [{"question": f"add {n} and 1", "answer": f"one more\n#### {n + 1}"} for n in range(40)]
    hub.repo("datasets/tiny/sums", {"train.jsonl": "\n".join(map(json.dumps, sums)).encode()})
    sizes = ["--rl.prompts_per_step=2", "--rl.samples_per_prompt=2", "--rl.max_tokens=4", "--rl.steps=1"]
    arguments = ["--model", NAME, "--task", "tiny/sums:train", "--rl.device=cpu", *sizes]
    assert main(["rl", *arguments]) == 2
    assert 'rl.grader is not set: --rl.grader=\'{"type": "math"}\'' in capsys.readouterr().err
    assert main(["rl", *arguments, '--rl.grader={"type": "math"}']) == 0
    (origin,) = (tmp_path / "rondo" / "jobs").glob("*/origin.json")
    assert json.loads((origin.parent / "spec.json").read_text())["config"]["task"] == "tiny/sums:train"


def test_an_unsupported_model_is_refused_before_its_weights(
    hub: FakeHub, capsys: pytest.CaptureFixture[str]
) -> None:
    hub.repo("org/other", {"config.json": b'{"model_type": "unheard"}', "model.safetensors": b"x" * 5000})
    assert main(["pull", "org/other"]) == 3
    assert "unheard" in capsys.readouterr().err
    assert hub.ranges("/model.safetensors") == []


def test_pulled_models_are_listed_and_removed(hub: FakeHub, capsys: pytest.CaptureFixture[str]) -> None:
    assert list_pulled() == []
    folder = resolve(f"{NAME}@main")
    (pulled,) = list_pulled()
    assert (pulled.name, pulled.path, pulled.commit) == (NAME, folder, folder.name)
    assert pulled.disk_bytes > 10_000
    assert name_of(folder) == NAME
    assert main(["model", "list"]) == 0
    assert NAME in capsys.readouterr().out
    assert main(["model", "rm", NAME, "--yes"]) == 0
    assert "freed" in capsys.readouterr().out
    assert list_pulled() == []


@pytest.fixture
def quantized(hub: FakeHub, folder: Path, tmp_path: Path) -> FakeHub:
    """A repository with GGUF files only."""
    files = [export_gguf(folder, tmp_path / f"Tiny-{label}.gguf", label) for label in ("BF16", "Q8_0")]
    hub.repo("Tiny/Model-GGUF", {file.name: file.read_bytes() for file in files})
    return hub


def test_gguf_files_are_pulled_listed_used_and_removed(
    quantized: FakeHub, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert main(["pull", "Tiny/Model-GGUF:q8_0"]) == 0
    out = capsys.readouterr().out
    assert "Tiny/Model-GGUF:Q8_0 (" in out
    assert out.endswith("Serve it: rondo serve Tiny/Model-GGUF:q8_0\n")
    (output,) = LLM("Tiny/Model-GGUF:Q8_0").generate(["hello"])
    assert output.outputs[0].token_ids
    assert main(["plan", "hf.co/Tiny/Model-GGUF:Q8_0"]) == 0
    assert main(["model", "list"]) == 0
    assert "Tiny/Model-GGUF:Q8_0 " in capsys.readouterr().out
    assert main(["model", "cp", "Tiny/Model-GGUF:Q8_0", "mine"]) == 0
    assert resolve("mine").parent == tmp_path / "rondo/models/mine"
    assert main(["model", "rm", "Tiny/Model-GGUF:Q8_0", "--yes"]) == 0
    assert list_pulled() == []


def test_a_gguf_file_is_served_under_the_typed_name(quantized: FakeHub, tmp_path: Path) -> None:
    name = "hf.co/Tiny/Model-GGUF:bf16"
    served = Served(name, tmp_path / "served").start()
    try:
        served.wait()
        ids = [each["id"] for each in httpx.get(f"{served.url}/v1/models").json()["data"]]
        assert ids[0] == "Tiny/Model-GGUF:BF16"
        body = {"model": name, "prompt": "hello", "max_tokens": 3}
        assert httpx.post(f"{served.url}/v1/completions", json=body, timeout=60).status_code == 200
    finally:
        served.kill()


@pytest.fixture
def adapter(hub: FakeHub, folder: Path, tmp_path: Path) -> str:
    """An adapter of the model, by name."""
    made = write_lora(models.load(folder), tmp_path / "made")
    config = json.loads((made / "adapter_config.json").read_text())
    (made / "adapter_config.json").write_text(json.dumps({**config, "base_model_name_or_path": NAME}))
    hub.repo("tiny/polite", made)
    return "tiny/polite"


def test_an_adapter_is_pulled_and_served_beside_its_base(
    adapter: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert main(["serve", adapter]) == 3
    command = f"rondo serve {NAME} --lora-modules polite={adapter}"
    assert f"{adapter} is an adapter, not a model. Serve it beside its base model: {command}" in (
        capsys.readouterr().err
    )
    assert main(["pull", adapter]) == 0
    assert capsys.readouterr().out.endswith(f"Serve it: {command}\n")
    served = Served(NAME, tmp_path / "served", "--lora-modules", f"polite={adapter}").start()
    try:
        served.wait()
        texts = []
        for model in (NAME, "polite"):
            body = {"model": model, "prompt": "hello", "max_tokens": 8, "temperature": 0}
            answer = httpx.post(f"{served.url}/v1/completions", json=body, timeout=60).json()
            texts.append(answer["choices"][0]["text"])
        assert texts[0] != texts[1]
    finally:
        served.kill()


def test_an_adapter_by_name_is_evaluated(
    adapter: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    data = tmp_path / "text.jsonl"
    data.write_text('{"text": "hello the user"}\n')
    scores = []
    for flags in ([], ["--adapter", adapter]):
        assert main(["evaluate", NAME, "--data", str(data), "--train.device=cpu", "--json", *flags]) == 0
        scores.append(json.loads(capsys.readouterr().out))
    assert scores[0] != scores[1]


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["pull", NAME + ":Q8_0"], 4, "has no GGUF files, so 'Q8_0' selects nothing"),
        (["serve", NAME, "--lora-modules", "a=tiny/none"], 4, "There is no model 'tiny/none'"),
        (["serve", "tiny/Modle"], 4, "Did you mean Tiny/Model, which is on this machine?"),
        (
            ["serve", "Model"],
            4,
            "Did you mean Tiny/Model? A model of the Hugging Face Hub has the form ORG/NAME",
        ),
        (["pull", "Model"], 2, "write ORG/NAME"),
        (["pull", "tiny/talk:train"], 2, "A data set needs --dataset"),
        (["train", "sft", "--model", NAME, "--data", "tiny/none"], 4, "no data set 'tiny/none'"),
        (["evaluate", "tiny/none", "--data", "x.jsonl"], 4, "There is no folder tiny/none here"),
        (["rl", "--model", "tiny/none", "--task", "reverse"], 4, "There is no model 'tiny/none'"),
    ],
)
def test_errors_with_a_remedy(
    hub: FakeHub, capsys: pytest.CaptureFixture[str], arguments: list[str], code: int, message: str
) -> None:
    resolve(NAME)
    assert main(arguments) == code
    assert message in capsys.readouterr().err


def test_a_cached_model_is_resolved_without_http_client_and_torch(hub: FakeHub) -> None:
    folder = resolve(NAME)
    code = (
        f"import sys; from rondo.models.store import resolve; print(resolve({NAME!r}))\n"
        "print({'huggingface_hub', 'httpx', 'torch', 'rich'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == [str(folder), "set()"]


def test_offline_errors_name_the_command(
    hub: FakeHub, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert main(["serve", NAME]) == 1
    assert f"run `rondo pull {NAME}`" in capsys.readouterr().err
