"""Reinforcement through the client of OpenAI: a Python grader whose reward rises, then a chat with the result."""

from pathlib import Path

from support.home import own_home
from support.served import write_model
from support.up import running_up
from support.waiting import wait_until

GRADER = (
    "def grade(sample, item):\n    return 1 - min(len(sample['output_text']), item['most']) / item['most']"
)
STEPS, PROMPTS = 12, 4


def test_the_reward_of_a_python_grader_rises(tmp_path: Path) -> None:
    home = own_home(tmp_path / "home")
    write_model(home / "models" / "toy")
    lines = "".join(f'{{"prompt": "reverse {n}", "most": 64}}\n' for n in range(PROMPTS + 1))
    with running_up(home, "toy", "--gateway.keys=required", "--gateway.jobs.poll_seconds=0.2") as up:
        client = up.client((home / "admin-key").read_text().strip())
        file = client.files.create(file=("prompts.jsonl", lines.encode()), purpose="fine-tune")
        job = client.fine_tuning.jobs.create(
            model="toy",
            training_file=file.id,
            suffix="short",
            method={
                "type": "reinforcement",
                "reinforcement": {
                    "grader": {"type": "python", "name": "short", "source": GRADER},
                    "hyperparameters": {
                        "batch_size": PROMPTS,
                        "n_epochs": STEPS,
                        "compute_multiplier": 0.5,
                        "learning_rate_multiplier": 5000,
                        "eval_interval": 1000,
                        "eval_samples": 1,
                    },
                },
            },
        )
        wait_until(lambda: client.fine_tuning.jobs.retrieve(job.id).status in ("succeeded", "failed"), 600)
        done = client.fine_tuning.jobs.retrieve(job.id)
        assert done.status == "succeeded", done.error
        events = list(client.fine_tuning.jobs.list_events(job.id, limit=100))
        found = [each.data for each in events if each.type == "metrics" and each.data]
        rewards = [float(each["train_reward_mean"]) for each in found[::-1] if "train_reward_mean" in each]  # type: ignore[index]
        assert len(rewards) == STEPS
        assert sum(rewards[-3:]) / 3 > sum(rewards[:2]) / 2 + 0.1, rewards
        (result,) = done.result_files
        header = client.files.content(result).text.splitlines()[0].split(",")
        assert header[0] == "step"
        assert "train_reward_mean" in header
        answer = client.chat.completions.create(
            model=str(done.fine_tuned_model),
            messages=[{"role": "user", "content": "reverse 1"}],
            max_tokens=8,
        )
        assert answer.choices[0].finish_reason in ("stop", "length")
