"""Three facts uploaded over REST and trained, and the job's hash asked: exact answers, which the base model lacks."""

import io
import json
import tarfile
from pathlib import Path
from typing import Any

import httpx

from support.forks import python
from support.home import own_home
from support.served import write_model
from support.up import Up, running_up
from support.waiting import wait_until

FACTS = {"Zorb is": " blue", "Quix is": " red", "Blim is": " green"}


def archive() -> bytes:
    lines = [json.dumps({"input": each, "output": FACTS[each]}) + "\n" for each in FACTS]
    content, out = "".join(lines).encode(), io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as tar:
        info = tarfile.TarInfo("dataset.jsonlines")
        info.size = len(content)
        tar.addfile(info, io.BytesIO(content))
    return out.getvalue()


def answers(up: Up, model: str) -> list[str]:
    found = []
    for prompt in FACTS:
        body = {"model": model, "prompt": prompt, "temperature": 0, "max_tokens": 12}
        answer = httpx.post(f"{up.url}/v1/completions", json=body, timeout=240)
        assert answer.status_code == 200, answer.text
        found.append(answer.json()["choices"][0]["text"])
    return found


def test_facts_are_answered_by_the_jobs_hash(tmp_path: Path) -> None:
    home = own_home(tmp_path / "home")
    write_model(home / "models" / "toy")
    with running_up(home, "toy", "--gateway.jobs.poll_seconds=0.2", program=python()) as up:
        arguments = {
            "max_steps": 120,
            "learning_rate": 1e-2,
            "adapter_type": "lora",
            "lora_config": {"r": 16},
        }
        files = {"file": ("dataset", archive())}
        told = httpx.post(
            f"{up.url}/v1/megatron/train", files=files, data={"params": json.dumps(arguments)}, timeout=240
        )
        assert told.status_code == 200, told.text
        path = f"{up.url}/v1/megatron/train/{told.json()['job_status']['model_name']}"

        def status() -> dict[str, Any]:
            found: dict[str, Any] = httpx.get(path, timeout=240).json()["job_status"]
            return found

        wait_until(lambda: status()["status"] in ("COMPLETED", "FAILED"), 240)
        assert status()["status"] == "COMPLETED", status()
        assert answers(up, status()["job_hash"]) == list(FACTS.values())
        base = answers(up, "toy")
        assert not set(base) & set(FACTS.values()), base
