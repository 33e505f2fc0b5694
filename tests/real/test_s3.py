"""Data on a real S3 server: prepared there, read from there, resumed there; and what a wrong key or bucket says."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from rondo import models
from rondo.base.storage import remote
from rondo.base.storage.files import atomic_dir
from rondo.cli.main import main
from rondo.data.batching.sampler import DocumentSpan
from rondo.data.preparation.prepare import PrepareRequest, prepare
from rondo.data.storage.cache import Cache
from rondo.data.storage.places import find_files
from rondo.data.storage.shards import Shards, check_shards, read_index
from rondo.jobs.job import Job
from rondo.train import loop
from rondo.train.checkpoints.checkpoint import existing
from support.ceph import S3, ceph
from support.home import own_home
from support.ports import free_port
from support.tiny import tiny_model, tiny_tokenizer

pytestmark = pytest.mark.real

TEXTS = [f"the user asks {n} and the assistant answers {n * n} " * (1 + n % 5) for n in range(800)]
OPTIONS: dict[str, Any] = {"part_bytes": 8000, "shard_bytes": 60_000, "workers": 2}


@pytest.fixture(scope="module")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3]:
    with ceph(tmp_path_factory.mktemp("ceph")) as server, pytest.MonkeyPatch.context() as patch:
        for name, value in server.environment().items():
            patch.setenv(name, value)
        remote._store.cache_clear()
        remote.store_of("s3://bucket")[0].mkdir("bucket")
        yield server
        remote._store.cache_clear()


@pytest.fixture(scope="module")
def ground(s3: S3, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A model, text on the disk and in the bucket, and shards made of it on the disk."""
    folder = tmp_path_factory.mktemp("ground")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RONDO_HOME", str(own_home(folder / "home")))
        with atomic_dir(folder / "model") as model:
            models.save_into(tiny_model(), model)
            tiny_tokenizer().save(model)
        (folder / "text.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in TEXTS))
        remote.store_of("s3://bucket")[0].put_file(str(folder / "text.jsonl"), "bucket/text.jsonl")
        prepare(
            PrepareRequest([str(folder / "text.jsonl")], folder / "model", str(folder / "shards"), **OPTIONS)
        )
        yield folder


def rondo(*arguments: object, **environment: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "rondo.cli.main", *map(str, arguments)]
    return subprocess.run(
        command, env={**os.environ, **environment}, capture_output=True, text=True, timeout=120
    )


def test_shards_made_in_the_bucket_are_those_made_on_the_disk(ground: Path) -> None:
    made = prepare(
        PrepareRequest(["s3://bucket/text.jsonl"], ground / "model", "s3://bucket/made", **OPTIONS)
    )
    here = read_index(str(ground / "shards"))
    assert [shard.sha256 for shard in made.shards] == [shard.sha256 for shard in here.shards]
    check_shards("s3://bucket/made", read_index("s3://bucket/made"))
    assert len(find_files("s3://bucket/made", (".tar",))) == len(made.shards)
    assert not find_files("s3://bucket/made", (".json",))[0].name.endswith("part-000000.json")
    pieces = [DocumentSpan(0, number, 1, 7) for number in (0, 400, 799, 3)]
    near = Shards(str(ground / "shards"), here)
    for cache in (None, Cache(10**9, ground / "cache")):
        far = Shards("s3://bucket/made", made, cache)
        assert [t.tolist() for t, _ in far.read(pieces)] == [t.tolist() for t, _ in near.read(pieces)]


SCRIPT = """
import sys
from pathlib import Path
from rondo.data.preparation.prepare import PrepareRequest, prepare
prepare(PrepareRequest([sys.argv[1]], Path(sys.argv[2]), sys.argv[3], part_bytes=8000, shard_bytes=60_000, workers=2),
        lambda now: print(now.documents, flush=True))
"""


def test_killed_and_resumed_in_the_bucket(ground: Path) -> None:
    out = "s3://bucket/killed"
    command = [sys.executable, "-c", SCRIPT, "s3://bucket/text.jsonl", str(ground / "model"), out]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout
    while int(process.stdout.readline()) < 100:
        pass
    process.kill()
    process.wait()
    process.stdout.close()
    seen: list[int] = []
    request = PrepareRequest(["s3://bucket/text.jsonl"], ground / "model", out, **OPTIONS)
    index = prepare(request, lambda now: seen.append(now.documents))
    assert index.digest == read_index(str(ground / "shards")).digest
    assert seen[0] >= 50, "what was done is not done again"
    names = set(remote.store_of(out)[0].ls("bucket/killed", detail=False))
    assert names == {
        f"bucket/killed/{name}" for name in ("index.json", "lengths.npy", *(s.name for s in index.shards))
    }


def test_training_from_the_bucket_is_training_from_the_disk(
    ground: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = ["data", "prepare", "s3://bucket/text.jsonl", "--tokenizer", str(ground / "model")]
    assert main([*made, "--out", "s3://bucket/cli", "--part-size", "40000", "--json"]) == 0
    train = [
        "train",
        "pretrain",
        "--model",
        str(ground / "model"),
        "--train.steps=3",
        "--train.max_length=64",
    ]
    train += ["--train.tokens_per_step=256", "--train.tokens_per_microbatch=128"]
    losses = []
    for at, data in enumerate(["s3://bucket/cli", "s3://bucket/text.jsonl", str(ground / "text.jsonl")]):
        home = own_home(ground / f"home-{at}")
        monkeypatch.setenv("RONDO_HOME", str(home))
        assert main([*train, "--data", data]) == 0
        (metrics,) = home.glob("jobs/*/metrics.jsonl")
        losses.append([json.loads(line)["loss"] for line in metrics.read_text().splitlines()])
    assert losses[0] == losses[1] == losses[2]
    assert list((ground / "home-0" / "cache" / "objects").glob("*.tar")), "the shards were kept"


def test_checkpoints_in_the_bucket_are_gone_on_with(ground: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By two ranks what one has left, and the end is that of a job that kept them on the disk."""
    monkeypatch.setenv("RONDO_HOME", str(own_home(ground / "home-checkpoints")))
    train = ["train", "pretrain", "--model", str(ground / "model"), "--data", str(ground / "text.jsonl")]
    train += ["--train.tokens_per_step=512", "--train.tokens_per_microbatch=128", "--train.max_length=64"]
    train += ["--train.save_every=2", "--train.keep=2", "--train.eps=1e-3", "--train.steps=6"]
    far = [*train, "--train.save_to=s3://bucket/checkpoints"]
    nobody = {"AWS_ACCESS_KEY_ID": "", "AWS_SECRET_ACCESS_KEY": ""}
    done = rondo(*far, **nobody)
    assert (done.returncode, "no credentials for s3://bucket/checkpoints" in done.stderr) == (2, True), (
        done.stderr
    )

    record = loop._Run.record
    with monkeypatch.context() as patch:

        def killed(run: loop._Run, metrics: dict[str, float]) -> None:
            record(run, metrics)
            if run.learner.step == 5:
                raise KeyboardInterrupt

        patch.setattr(loop._Run, "record", killed)
        assert main(far) == 130
    (job,) = Job.all()
    assert job.checkpoints == f"s3://bucket/checkpoints/{job.name}"
    assert [checkpoint.step for checkpoint in existing(job.checkpoints)] == [4, 2]
    store, path = remote.store_of(f"{job.checkpoints}/step_4/__0_0.distcp")
    raw = bytearray(store.cat_file(path))
    raw[1000] ^= 1
    store.pipe_file(path, bytes(raw))

    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", "-m", "rondo", *far]
    resumed = subprocess.run(command, capture_output=True, text=True, timeout=200)
    assert resumed.returncode == 0, resumed.stderr
    assert "step_4/__0_0.distcp does not match its manifest" in resumed.stderr
    assert "it goes on from step 2 of 6" in resumed.stderr
    assert [checkpoint.step for checkpoint in existing(job.checkpoints)] == [6, 4]
    assert not (job.path / "checkpoints").exists()

    monkeypatch.setenv("RONDO_HOME", str(own_home(ground / "home-near")))
    assert main(train) == 0
    (near,) = Job.all()
    assert near.name == job.name
    ours, theirs = (load_file(each.export / "model.safetensors") for each in (job, near))
    assert all(torch.allclose(ours[name], theirs[name], atol=1e-6, rtol=0) for name in theirs)


def test_what_is_wrong_is_said_in_a_line(ground: Path) -> None:
    prepare_it = ("data", "prepare", "--tokenizer", ground / "model", "--workers", "1")
    source, out = "s3://bucket/text.jsonl", "s3://bucket/wrong"
    nobody = {"AWS_ACCESS_KEY_ID": "", "AWS_SECRET_ACCESS_KEY": ""}
    for arguments, environment, code, says in [
        ((source, "--out", out), nobody, 2, f"no credentials for {source}: set AWS_ACCESS_KEY_ID"),
        ((source, "--out", out), {"AWS_SECRET_ACCESS_KEY": "x"}, 6, f"the store refuses {source}: Forbidden"),
        (("s3://wrong/x.jsonl", "--out", out), {}, 4, "there is nothing at s3://wrong/x.jsonl"),
        ((source, "--out", "s3://wrong/out"), {}, 4, "there is nothing at s3://wrong/out"),
        (
            (source, "--out", out),
            {"AWS_ENDPOINT_URL": f"http://127.0.0.1:{free_port()}"},
            1,
            "cannot be reached",
        ),
    ]:
        done = rondo(*prepare_it, *arguments, **environment)
        assert (done.returncode, done.stdout) == (code, ""), done.stderr
        assert done.stderr.count("\n") == 1
        assert done.stderr.startswith("error: ")
        assert says in done.stderr
    done = rondo("train", "pretrain", "--model", ground / "model", "--data", "s3://bucket/none.jsonl")
    assert (done.returncode, "there is nothing at s3://bucket/none.jsonl" in done.stderr) == (4, True), (
        done.stderr
    )
