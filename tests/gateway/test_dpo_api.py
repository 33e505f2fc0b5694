"""Preference pairs in OpenAI's format through its client: the margin rises, and the model answers as preferred."""

import csv
import io
import json
from pathlib import Path

from support.forks import python
from support.home import own_home
from support.served import write_model
from support.up import running_up
from support.waiting import wait_until

PROMPTS = ("reverse 12", "reverse 34")
PREFERRED, OTHER = "green", "red"
EPOCHS, BETA = 30, 0.2


def pair(prompt: str) -> str:
    record = {
        "input": {
            "messages": [{"role": "user", "content": prompt}],
            "tools": [],
            "parallel_tool_calls": True,
        },
        "preferred_output": [{"role": "assistant", "content": PREFERRED}],
        "non_preferred_output": [{"role": "assistant", "content": OTHER}],
    }
    return json.dumps(record) + "\n"


def test_pairs_make_the_preferred_answer_more_likely(tmp_path: Path) -> None:
    home = own_home(tmp_path / "home")
    write_model(home / "models" / "toy")
    pairs = "".join(map(pair, PROMPTS)).encode()
    with running_up(
        home, "toy", "--gateway.keys=required", "--gateway.jobs.poll_seconds=0.2", program=python()
    ) as up:
        client = up.client((home / "admin-key").read_text().strip())
        files = client.files
        training, validation = (
            files.create(file=(name, pairs), purpose="fine-tune").id
            for name in ("pairs.jsonl", "held_out.jsonl")
        )
        job = client.fine_tuning.jobs.create(
            model="toy",
            training_file=training,
            validation_file=validation,
            suffix="green",
            method={
                "type": "dpo",
                "dpo": {
                    "hyperparameters": {
                        "beta": BETA,
                        "batch_size": len(PROMPTS),
                        "n_epochs": EPOCHS,
                        "learning_rate_multiplier": 500,
                    }
                },
            },
        )
        wait_until(lambda: client.fine_tuning.jobs.retrieve(job.id).status in ("succeeded", "failed"), 240)
        done = client.fine_tuning.jobs.retrieve(job.id)
        assert done.status == "succeeded", done.error
        assert done.method is not None
        assert done.method.dpo is not None
        assert done.method.dpo.hyperparameters is not None
        assert done.method.dpo.hyperparameters.beta == BETA
        assert done.trained_tokens

        events = list(client.fine_tuning.jobs.list_events(job.id, limit=100))
        steps = [each.data for each in reversed(events) if each.type == "metrics" and each.data]
        assert len(steps) == EPOCHS
        first, last = (
            {name: float(value) for name, value in dict(step).items()} for step in (steps[0], steps[-1])
        )
        assert abs(first["train_loss"] - 0.6931) < 1e-3, "log 2: the policy is its reference"
        assert last["train_loss"] < 0.3
        assert last["train_preference_accuracy"] == last["valid_preference_accuracy"] == 1.0
        assert last["valid_loss"] < 0.3
        (checkpoint, *_) = client.fine_tuning.jobs.checkpoints.list(job.id)
        assert checkpoint.step_number == EPOCHS
        (result,) = done.result_files
        rows = list(csv.DictReader(io.StringIO(client.files.content(result).text)))
        assert [int(row["step"]) for row in rows] == list(range(1, EPOCHS + 1))
        assert float(rows[-1]["train_preference_accuracy"]) == 1.0

        def answer(model: str) -> str:
            made = client.chat.completions.create(
                model=model, messages=[{"role": "user", "content": PROMPTS[0]}], max_tokens=8, temperature=0
            )
            return str(made.choices[0].message.content)

        assert answer(str(done.fine_tuned_model)) == PREFERRED
        assert answer("toy") != PREFERRED
