import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from rondo import models
from rondo.base.storage.files import atomic_dir
from support.nursery import Nursery
from support.tiny import tiny_model, tiny_tokenizer

STEPS = 6


@pytest.fixture(scope="package")
def ground(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a model and training data."""
    folder = tmp_path_factory.mktemp("ground")
    with atomic_dir(folder / "model") as model:
        models.save_into(tiny_model(), model)
        tiny_tokenizer().save(model)
    lines = [
        json.dumps({"prompt": f"the user asks {i}", "completion": f" it answers {i}"}) for i in range(40)
    ]
    (folder / "data.jsonl").write_text("\n".join(lines))
    return folder


@pytest.fixture(scope="package")
def nursery() -> Iterator[Nursery]:
    with Nursery(["jobs._stopped"]) as nursery:
        yield nursery


def train_command(ground: Path, steps: int = STEPS, *flags: str) -> list[str]:
    sizes = ["--train.tokens_per_step=200", "--train.tokens_per_microbatch=128", "--train.max_length=64"]
    data = ["--data", str(ground / "data.jsonl"), f"--train.steps={steps}", "--train.save_every=2"]
    return ["train", "sft", "--model", str(ground / "model"), *data, *sizes, *flags]


def rl_command(ground: Path, steps: int = STEPS, *flags: str) -> list[str]:
    sizes = [
        "--rl.prompts_per_step=2",
        "--rl.samples_per_prompt=4",
        "--rl.max_tokens=6",
        "--rl.eval_prompts=4",
    ]
    more = ["--rl.most_idle=0", "--rl.kl=0.05", "--rl.save_every=2", f"--rl.steps={steps}"]
    return ["rl", "--model", str(ground / "model"), "--task", "reverse", *sizes, *more, *flags]
