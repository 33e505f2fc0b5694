"""Where a job's metrics go. TensorBoard, W&B and Prometheus read them themselves in tests/real."""

import struct
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch
from prometheus_client.parser import text_string_to_metric_families

from rondo.base.errors import ConfigError, MissingExtra
from rondo.jobs.job import Job
from rondo.train.config import MetricsConfig
from rondo.train.metrics.events import EventFile, _checksum, crc32c
from rondo.train.metrics.prometheus import FILE, Prometheus
from rondo.train.metrics.sinks import telling
from support.ports import free_port
from support.waiting import scaled

CPU = torch.device("cpu")


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Job:
    monkeypatch.setenv("RONDO_HOME", str(tmp_path))
    return Job.of({"kind": "pretrain", "config": {"lr": 1e-3}})


def watched(**metrics: Any) -> MetricsConfig:
    return MetricsConfig(**metrics)


def samples(text: str) -> dict[str, float]:
    families = text_string_to_metric_families(text)
    return {sample.name: sample.value for family in families for sample in family.samples}


def test_checksums_are_castagnolis() -> None:
    """The vectors of RFC 3720, B.4."""
    assert crc32c(bytes(32)) == 0x8A9136AA
    assert crc32c(b"\xff" * 32) == 0x62A8AB43
    assert crc32c(bytes(range(32))) == 0x46DD794E


def test_event_files_are_whole_records(tmp_path: Path) -> None:
    events = EventFile(tmp_path / "tensorboard")
    events.log(300, {"loss": 1.5})
    events.close()
    [file] = (tmp_path / "tensorboard").iterdir()
    data, found = file.read_bytes(), []
    while data:
        [size] = struct.unpack("<Q", data[:8])
        record = data[12 : 12 + size]
        assert (data[8:12], data[12 + size : 16 + size]) == (_checksum(data[:8]), _checksum(record))
        found.append(record)
        data = data[16 + size :]
    version, start, step = found
    assert b"brain.Event:2" in version
    assert start[9:] == b"\x10\xac\x02" + b"\x3a\x02\x08\x01"
    assert step[9:] == b"\x10\xac\x02" + b"\x2a\x0d\x0a\x0b\x0a\x04loss\x15" + struct.pack("<f", 1.5)


def test_prometheus_reads_the_last_step_and_the_end(job: Job) -> None:
    told: list[int] = []
    port = free_port()
    url = f"http://127.0.0.1:{port}/metrics"
    with telling(watched(port=port), job, CPU, lambda step, _: told.append(step)) as tell:
        for step in (1, 2):
            tell(step, {"loss": 3.0 / step, "tokens": 8.0, "input_tokens": 10.0, "peak_flops/bf16": 1e12})
        asked = {"Accept": "application/openmetrics-text;version=1.0.0"}
        found = samples(httpx.get(url, headers=asked, timeout=scaled(10)).text)
        assert httpx.get(url + "/x", timeout=scaled(10)).status_code == 404
    assert found["rondo:train_loss"] == 1.5
    assert found["rondo:train_step"] == 2
    assert found["rondo:train_input_tokens_total"] == 20
    assert found["rondo:train_tokens"] == 8
    assert found["rondo:train_peak_flops_bf16"] == 1e12
    assert told == [1, 2]
    left = samples((job.path / FILE).read_text())
    assert left["rondo:train_loss"] == 1.5
    with pytest.raises(httpx.ConnectError):
        httpx.get(url, timeout=scaled(10))


def test_of_an_rl_job_the_names_say_so(job: Job) -> None:
    with telling(watched(port=0), job, CPU, section="rl") as tell:
        tell(1, {"reward/correct": 0.5, "stale/8+": 0.25, "alarm/hacking": 1.0})
    left = samples((job.path / FILE).read_text())
    assert left["rondo:rl_reward_correct"] == 0.5
    assert left["rondo:rl_stale_8_"] == 0.25
    assert left["rondo:rl_alarm_hacking"] == 1.0
    first = Prometheus("job", job.path, "127.0.0.1", 0)
    with pytest.raises(ConfigError) as error, telling(watched(port=first.port), job, CPU, section="rl"):
        pass
    assert error.value.param == "rl.metrics.port"
    first.close()


def test_a_port_that_is_taken_is_named(job: Job) -> None:
    first = Prometheus("job", job.path, "127.0.0.1", 0)
    told = watched(port=first.port)
    with pytest.raises(ConfigError, match="cannot be opened") as error, telling(told, job, CPU):
        pass
    assert error.value.param == "train.metrics.port"
    first.close()


def test_wandb_is_an_extra(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(MissingExtra, match=r"rondo-lab\[wandb\]"), telling(watched(wandb="p"), job, CPU):
        pass
