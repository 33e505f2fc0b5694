"""ScalarLM's training API: submission in one form and in pieces, wrong fields, hostile archives, control, publication,
with a stand-in for the command that trains."""

import gzip
import hashlib
import io
import json
import shutil
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from gateway.stub import RunningGateway, Stub, gateway_of, served
from gateway.test_fine_tuning import PROGRAM
from rondo.base.errors import InvalidRequest
from rondo.base.lock import locked_folder
from rondo.control.jobs.launchers.command import command_of
from rondo.control.jobs.launchers.local import LocalLauncher
from rondo.control.key import Rights
from rondo.gateway.training.scalarlm.archive import content_of
from support.hub import LFS_BYTES, FakeHub
from support.waiting import wait_until

HASH = "ab" * 32
RECORDS = [{"input": f"What is {n} + {n}?", "output": f"The answer is {n + n}."} for n in range(3)]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("scalarlm")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RONDO_HOME", str(folder / "home"))
        yield folder


@pytest.fixture(scope="module")
def gateway(home: Path) -> Iterator[RunningGateway]:
    program = home / "program.py"
    program.write_text(PROGRAM)
    jobs = {"poll_seconds": 0.05, "grace_seconds": 5.0}
    with served(Stub(["toy"])) as stub, gateway_of([stub.url], home, jobs=jobs) as running:
        launcher = next(iter(running.gateway.training.launchers.values()))
        assert isinstance(launcher, LocalLauncher)
        launcher.command = lambda spec: [sys.executable, "-S", str(program), json.dumps(dict(spec.settings))]
        yield running
        go(home)


@pytest.fixture(autouse=True)
def _clean(gateway: RunningGateway, home: Path) -> Iterator[None]:
    yield
    go(home)
    for model in get(gateway, "/v1/megatron/list_models")["models"]:
        assert post(gateway, f"/v1/megatron/delete/{model['name']}").status_code == 200
    shutil.rmtree(home / "home" / "jobs" / HASH, ignore_errors=True)


def go(home: Path) -> None:
    (home / "home" / "jobs" / HASH).mkdir(parents=True, exist_ok=True)
    (home / "home" / "jobs" / HASH / "go").touch()


def get(gateway: RunningGateway, path: str) -> Any:
    answer = httpx.get(gateway.url + path)
    assert answer.status_code == 200, answer.text
    return answer.json()


def post(gateway: RunningGateway, path: str, **options: Any) -> httpx.Response:
    return httpx.post(gateway.url + path, timeout=120, **options)


def packed(records: list[Any] | bytes = RECORDS, name: str = "dataset.jsonlines", **more: Any) -> bytes:
    content = (
        records
        if isinstance(records, bytes)
        else b"".join(json.dumps(each).encode() + b"\n" for each in records)
    )
    return archive((name, content), **more)


def archive(*members: tuple[str, bytes] | tarfile.TarInfo, mode: Any = "w:gz") -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode=mode) as tar:
        for member in members:
            if isinstance(member, tarfile.TarInfo):
                tar.addfile(member)
                continue
            info = tarfile.TarInfo(member[0])
            info.size = len(member[1])
            tar.addfile(info, io.BytesIO(member[1]))
    return out.getvalue()


def train(gateway: RunningGateway, data: bytes | None = None, **arguments: Any) -> httpx.Response:
    files = {"file": ("dataset", packed() if data is None else data)}
    return post(gateway, "/v1/megatron/train", files=files, data={"params": json.dumps(arguments)})


def inputs(home: Path) -> list[Path]:
    return list((home / "home" / "runs" / "inputs").glob("*"))


def test_the_life_of_a_job(gateway: RunningGateway, home: Path) -> None:
    answer = train(
        gateway, max_steps=6, learning_rate=1e-3, adapter_type="lora", timeout=9, gpus=1, max_gpus=1
    )
    assert answer.headers["X-Rondo-Ignored"] == "max_gpus"
    told = answer.json()
    name = told["job_status"]["model_name"]
    assert Path(told["job_status"]["job_directory"]).name == name
    assert (told["job_config"]["llm_name"], told["deployed"]) == ("toy", False)
    again = train(
        gateway, max_steps=6, learning_rate=1e-3, adapter_type="lora", timeout=9, gpus=1, max_gpus=1
    ).json()
    assert again["job_status"]["job_id"] == told["job_status"]["job_id"], "equal contents are the same job"
    wait_until(lambda: get(gateway, f"/v1/megatron/train/{name}")["job_status"]["status"] == "TRAINING")
    assert "RUNNING" in get(gateway, "/v1/megatron/squeue")["squeue_output"]
    status = get(gateway, "/slurm/status")
    assert (status["resources"], status["queue"]["error_message"]) == (
        {"gpu_count": 0, "node_count": 1},
        None,
    )
    go(home)
    wait_until(lambda: get(gateway, "/v1/megatron/train/latest")["job_status"]["status"] == "COMPLETED")
    job = get(gateway, f"/v1/megatron/train/{HASH}")["job_status"]
    assert [row["loss"] for row in job["history"]] == [1, 0.5]
    (row,) = get(gateway, "/v1/megatron/list_models")["models"]
    assert (row["name"], row["status"], row["step"], row["max_steps"]) == (name, "COMPLETED", 2, 2)
    (checkpoint,) = get(gateway, f"/v1/megatron/train/{name}/checkpoints")["checkpoints"]
    assert (checkpoint["step"], checkpoint["model"]) == (2, f"{HASH}@2")
    shown = get(gateway, f"/v1/megatron/train/{name}/dataset?offset=1&limit=1")
    assert (shown["total"], shown["examples"][0]["input"]) == (3, "What is 1 + 1?")
    assert get(gateway, f"/v1/megatron/train/{name}/dataset?q=answer is 4")["matched"] == 1
    assert httpx.get(f"{gateway.url}/v1/megatron/train/{name}/dataset/download?limit=2").text.count("\n") == 2
    lines = httpx.get(f"{gateway.url}/v1/megatron/train/logs/{name}").text.splitlines()
    assert json.loads(lines[0])["line"].startswith("training on")
    assert get(gateway, "/v1/megatron/gpu_count") == {"gpu_count": 0}
    assert post(gateway, f"/v1/megatron/restart/{name}").status_code == 409
    assert httpx.get(f"{gateway.url}/v1/megatron/train/none").status_code == 404
    assert len(get(gateway, "/v1/megatron/endpoints")["endpoints"]) > 20


def test_cancel_restart_delete_and_a_removed_folder(gateway: RunningGateway, home: Path) -> None:
    told = train(gateway).json()["job_status"]
    name = told["model_name"]
    wait_until(lambda: get(gateway, f"/v1/megatron/train/{name}")["job_status"]["status"] == "TRAINING")
    assert post(gateway, f"/v1/megatron/cancel/{name}").json()["job_status"]["status"] == "CANCELLED"
    restarted = post(gateway, f"/v1/megatron/restart/{name}").json()["job_status"]
    assert (restarted["model_name"], restarted["job_id"] != told["job_id"]) == (name, True)
    go(home)
    wait_until(lambda: get(gateway, f"/v1/megatron/train/{name}")["job_status"]["status"] == "COMPLETED")
    assert train(gateway).json()["job_status"]["job_id"] == restarted["job_id"]
    shutil.rmtree(home / "home" / "jobs" / HASH)
    run_again = train(gateway).json()["job_status"]
    assert (run_again["job_id"] != restarted["job_id"], run_again["model_name"]) == (True, name)
    assert len(inputs(home)) == 1
    assert post(gateway, f"/v1/megatron/delete/{name}").status_code == 200
    assert httpx.get(f"{gateway.url}/v1/megatron/train/{name}").status_code == 404
    post(gateway, f"/v1/megatron/delete/{restarted['job_id']}")
    post(gateway, f"/v1/megatron/delete/{told['job_id']}")
    assert inputs(home) == []


@pytest.mark.parametrize(
    ("arguments", "param"),
    [
        ({"learning_rate": -1}, "learning_rate"),
        ({"max_step": 3}, "max_step"),
        ({"lora_config": {"rank": 8}}, "lora_config.rank"),
        ({"lora_config": {"r": 0}}, "lora_config.r"),
        ({"adapter_type": "nara"}, "adapter_type"),
        ({"gpus": 2}, "gpus"),
        ({"nodes": 2}, "nodes"),
        ({"llm_name": "../../etc"}, "llm_name"),
        ({"training_mode": "embedding"}, "training_mode"),
        ({"trust_remote_code": True}, "trust_remote_code"),
    ],
)
def test_wrong_fields_are_named_before_anything_is_stored(
    gateway: RunningGateway, home: Path, arguments: dict[str, Any], param: str
) -> None:
    answer = train(gateway, **arguments)
    assert (answer.status_code, answer.json()["error"]["param"]) == (422, param), answer.text
    beginning = {
        "total_size": 9,
        "total_hash": "0" * 64,
        "chunk_size": 9,
        "num_chunks": 1,
        "params": arguments,
    }
    answer = post(gateway, "/v1/megatron/upload/init", json=beginning)
    assert (answer.status_code, answer.json()["error"]["param"]) == (422, param)
    assert inputs(home) == []
    assert not list((home / "files").rglob("manifest.json"))
    assert get(gateway, "/v1/megatron/list_models") == {"models": []}


def _link(name: str, kind: bytes, target: str) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, target
    return info


DATA = ("dataset.jsonlines", b'{"input": "a", "output": "b"}\n')
HOSTILE = {
    "traversal": archive(DATA, ("../../escaped", b"x")),
    "absolute": archive(DATA, ("/tmp/escaped", b"x")),
    "symlink": archive(_link("dataset.jsonlines", tarfile.SYMTYPE, "/etc/passwd")),
    "hard link": archive(_link("dataset.jsonlines", tarfile.LNKTYPE, "/etc/passwd")),
    "device": archive(DATA, _link("x", tarfile.CHRTYPE, "")),
    "code without a program": archive(DATA, ("ml/other.py", b"print(1)")),
    "code beside a link": archive(
        ("ml/cray_megatron/main.py", b"print(1)"), _link("ml/x", tarfile.SYMTYPE, "/etc/passwd")
    ),
    "no data": archive(("other", b"x")),
    "twice": archive(DATA, DATA),
    "empty": archive(("dataset.jsonlines", b"\n")),
    "no records": packed(b"[1]\n"),
    "not JSON": packed(b"{\n"),
    "numbers": packed([{"input": 1, "output": 2}]),
    "many members": archive(DATA, *((f"{n}", b"") for n in range(10_001))),
    "cut": packed()[:-40],
    "no archive": b"plain text",
    "nothing": b"",
    "bomb": gzip.compress(archive(("dataset.jsonlines", bytes(3 << 20)), mode="w")),
    "long name": archive(DATA, ("n" * (17 << 20), b""), mode="w"),
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_hostile_archives_are_refused_and_leave_nothing(kind: str, home: Path, tmp_path: Path) -> None:
    file = tmp_path / "archive"
    file.write_bytes(HOSTILE[kind])
    with pytest.raises(InvalidRequest) as caught:
        content_of(file, 1 << 20 if kind == "bomb" else 64 << 20, lambda: None)
    assert (caught.value.status, caught.value.param) == (422, "file")
    assert inputs(home) == []


def test_an_archive_is_refused_by_the_route(gateway: RunningGateway, home: Path) -> None:
    answer = train(gateway, HOSTILE["symlink"])
    assert (answer.status_code, "link" in answer.text) == (422, True)
    assert inputs(home) == []
    assert not list((home / "files" / "incoming").glob("*"))


def test_a_program_of_an_archive_is_the_job(gateway: RunningGateway, home: Path) -> None:
    launcher = next(iter(gateway.gateway.training.launchers.values()))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(launcher, "command", command_of)
        program = b"""
import json, os, helper
told = json.load(open(os.environ["CRAY_TRAINING_JOB_CONFIG_PATH"]))
lines = open(told["training_data_path"]).read().splitlines()
history = [{"step": n, "loss": 1 / n, "epoch": 0, "time": n} for n in range(1, told["max_steps"] + 1)]
json.dump({"history": history}, open(told["job_directory"] + "/status.json", "w"))
print("trained", helper.ANSWER, len(lines), flush=True)
"""
        data = archive(
            ("ml/cray_megatron/main.py", program),
            ("ml/helper.py", b"ANSWER = 42\n"),
            ("ml/__pycache__/helper.pyc", b"stale"),
            DATA,
        )
        answer = train(gateway, data, max_steps=10, training_history_length=4, timeout=600)
        assert answer.status_code == 200, answer.text
        name = answer.json()["job_status"]["model_name"]
        path = f"/v1/megatron/train/{name}"
        wait_until(lambda: get(gateway, path)["job_status"]["status"] in ("COMPLETED", "FAILED"))
        found = get(gateway, path)
        assert (found["job_status"]["status"], found["job_config"]["timeout"]) == ("COMPLETED", 600), found
        assert [each["step"] for each in found["job_status"]["history"]] == [1, 4, 7, 10]
        lines = httpx.get(f"{gateway.url}/v1/megatron/train/logs/{name}").text
        assert "trained 42 1" in lines
        assert get(gateway, path + "/dataset")["total"] == 1
    keys = gateway.gateway.keys
    _, without = keys.make("no code", Rights(scopes=("jobs",))).result()
    files, headers = {"file": ("dataset", data)}, {"Authorization": f"Bearer {without}"}
    refused = post(gateway, "/v1/megatron/train", files=files, data={"params": "{}"}, headers=headers)
    assert (refused.status_code, refused.json()["error"]["code"]) == (403, "scope_missing")


def pieces_of(data: bytes, size: int) -> list[bytes]:
    return [data[at : at + size] for at in range(0, len(data), size)]


def send(
    gateway: RunningGateway, id: str, index: int, data: bytes, sha256: str | None = None
) -> httpx.Response:
    hash = sha256 or hashlib.sha256(data).hexdigest()
    headers = {"X-Upload-Id": id, "X-Chunk-Index": str(index), "X-Chunk-Hash": hash}
    return post(gateway, "/v1/megatron/upload/chunk", content=data, headers=headers)


def test_an_interrupted_upload_continues(gateway: RunningGateway, home: Path) -> None:
    data = packed(mode="w")
    pieces = pieces_of(data, 4000)
    beginning = {
        "total_size": len(data),
        "total_hash": hashlib.sha256(data).hexdigest(),
        "chunk_size": 4000,
        "num_chunks": len(pieces),
        "params": {"max_steps": 5},
    }
    started = post(gateway, "/v1/megatron/upload/init", json=beginning).json()
    id = started["upload_id"]
    assert send(gateway, id, 1, pieces[1]).json()["received"]
    assert send(gateway, id, 0, pieces[0], "0" * 64).status_code == 422
    assert send(gateway, id, 0, pieces[0][:-1]).status_code == 422
    assert send(gateway, id, len(pieces), pieces[0]).status_code == 422
    assert send(gateway, "../" + id, 0, pieces[0]).status_code == 404
    missing = post(gateway, "/v1/megatron/upload/finalize", json={"upload_id": id})
    assert (missing.status_code, "Missing chunks: [0" in missing.text) == (409, True)
    again = post(gateway, "/v1/megatron/upload/init", json=beginning).json()
    assert again == {"upload_id": id, "received_chunks": [1]}
    for index, piece in enumerate(pieces):
        assert send(gateway, id, index, piece).status_code == 200
    done = post(gateway, "/v1/megatron/upload/finalize", json={"upload_id": id})
    assert done.json()["job_config"]["max_steps"] == 5
    assert post(gateway, "/v1/megatron/upload/finalize", json={"upload_id": id}).status_code == 404


def test_a_wrong_hash_of_the_whole_is_an_error(gateway: RunningGateway) -> None:
    beginning = {"total_size": 3, "total_hash": "0" * 64, "chunk_size": 3, "num_chunks": 1, "params": {}}
    id = post(gateway, "/v1/megatron/upload/init", json=beginning).json()["upload_id"]
    send(gateway, id, 0, b"abc")
    answer = post(gateway, "/v1/megatron/upload/finalize", json={"upload_id": id})
    assert (answer.status_code, answer.json()["error"]["param"]) == (422, "total_hash")
    for wrong, param in (
        (beginning | {"num_chunks": 2}, "num_chunks"),
        (beginning | {"total_hash": "x"}, "total_hash"),
    ):
        answer = post(gateway, "/v1/megatron/upload/init", json=wrong)
        assert (answer.status_code, answer.json()["error"]["param"]) == (422, param)


def test_a_model_is_published_into_a_folder_and_to_a_hub(gateway: RunningGateway, home: Path) -> None:
    name = train(gateway).json()["job_status"]["model_name"]
    go(home)
    wait_until(lambda: get(gateway, f"/v1/megatron/train/{name}")["job_status"]["status"] == "COMPLETED")
    path, target = f"/v1/megatron/train/{name}/publish", home / "published"
    for wrong, param in (
        ({"mode": "merged", "destination": str(target)}, "mode"),
        ({"mode": "adapter", "destination": "relative"}, "destination"),
        ({"mode": "adapter", "repo_id": "../x", "hf_token": "t"}, "repo_id"),
        ({"mode": "adapter", "repo_id": "me/x"}, "hf_token"),
        ({"mode": "adapter"}, "repo_id"),
    ):
        answer = post(gateway, path, json=wrong)
        assert (answer.status_code, answer.json()["error"]["param"]) == (422, param), answer.text
    adapter = home / "home" / "jobs" / HASH / "adapter"
    adapter.mkdir()
    (adapter / "adapter_config.json").write_text("{}")
    assert (
        post(gateway, path, json={"mode": "adapter", "destination": str(target)}).json()["status"] == "QUEUED"
    )
    wait_until(lambda: get(gateway, path + "/status")["phase"] in ("done", "error"))
    assert get(gateway, path + "/status")["error"] is None
    assert (target / "adapter_config.json").read_text() == "{}"
    assert post(gateway, path + "/cancel").json()["phase"] == "done"
    (adapter / "adapter_model.safetensors").write_bytes(bytes(LFS_BYTES))
    hub = {"mode": "adapter", "repo_id": "me/facts", "private": True, "commit_message": "First"}
    with FakeHub().running() as found, pytest.MonkeyPatch.context() as patch:
        patch.setenv("HF_ENDPOINT", found.url)
        patch.delenv("HF_HUB_OFFLINE", raising=False)
        for token, phase in (("hf_wrong", "error"), (found.token, "done")):
            post(gateway, path, json={**hub, "hf_token": token}).raise_for_status()
            wait_until(lambda: get(gateway, path + "/status")["phase"] in ("done", "error"))
            status = get(gateway, path + "/status")
            assert status["phase"] == phase, status
            assert token not in json.dumps(status) + httpx.get(f"{gateway.url}{path}/logs").text
        assert status["repo_url"] == f"{found.url}/me/facts"
        (files,) = [
            found.repos["me/facts"].commits[name] for name in found.repos["me/facts"].branches.values()
        ]
        assert files["adapter_model.safetensors"] == bytes(LFS_BYTES)
        assert found.repos["me/facts"].private


def test_a_publication_of_a_killed_gateway_is_an_error(gateway: RunningGateway, home: Path) -> None:
    name = train(gateway).json()["job_status"]["model_name"]
    go(home)
    path = f"/v1/megatron/train/{name}/publish"
    wait_until(lambda: get(gateway, f"/v1/megatron/train/{name}")["job_status"]["status"] == "COMPLETED")
    adapter = home / "home" / "jobs" / HASH / "adapter"
    adapter.mkdir()
    (adapter / "adapter_config.json").write_text("{}")
    root = home / "home" / "published" / HASH
    (root / "9999999999-0").mkdir(parents=True)
    (root / "9999999999-0" / "status.json").write_text(json.dumps({"phase": "uploading", "error": None}))
    with locked_folder(root):  # of another gateway
        assert get(gateway, path + "/status")["phase"] == "uploading"
        body = {"mode": "adapter", "destination": str(home / "second")}
        refused = post(gateway, path, json=body)
        assert (refused.status_code, refused.json()["error"]["code"]) == (409, "publish_running")
    assert get(gateway, path + "/status")["phase"] == "error"
    shutil.rmtree(root)


def test_jobs_of_another_key_do_not_exist(gateway: RunningGateway) -> None:
    keys = gateway.gateway.keys
    headers = [{"Authorization": f"Bearer {keys.make(name, Rights()).result()[1]}"} for name in ("a", "b")]
    files = {"file": ("dataset", packed())}
    name = post(gateway, "/v1/megatron/train", files=files, data={"params": "{}"}, headers=headers[0]).json()[
        "job_status"
    ]["model_name"]
    for path in ("cancel", "delete", "restart"):
        assert post(gateway, f"/v1/megatron/{path}/{name}", headers=headers[1]).status_code == 404
    assert httpx.get(f"{gateway.url}/v1/megatron/train/latest", headers=headers[1]).status_code == 404
    _, without = keys.make("c", Rights(scopes=("inference",))).result()
    refused = post(gateway, "/v1/megatron/train", files=files, headers={"Authorization": f"Bearer {without}"})
    assert refused.status_code == 403
