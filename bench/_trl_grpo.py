"""TRL's GRPOTrainer, one step at a time: run by rl_step.py with the interpreter of TRL's own environment.

Reads the settings as one JSON line, then takes a step for every further line and answers with a JSON line.
"""

import json
import os
import sys
import time
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")

settings = json.loads(sys.stdin.readline())
replies = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)  # whatever TRL prints is not a reply
sys.path.insert(0, settings["source"])

import torch  # noqa: E402
from datasets import Dataset  # noqa: E402
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback  # noqa: E402
from trl import GRPOConfig, GRPOTrainer  # noqa: E402

from rondo.rl.tasks import puzzles  # noqa: E402  (plain Python: the very grader the other side uses)

torch.set_num_threads(settings["threads"])
seen: dict[str, Any] = {}


def reward(
    completions: list[Any], facts: list[str], completion_ids: list[list[int]], **_: Any
) -> list[float]:
    grade = getattr(puzzles, f"grade_{settings['task']}")
    texts = [completion[0]["content"] for completion in completions]
    parts = [grade(json.loads(fact), text) for fact, text in zip(facts, texts, strict=True)]
    totals = [sum(share * each[name] for name, share in settings["shares"].items()) for each in parts]
    seen["tokens"] = sum(map(len, completion_ids))
    seen["reward"] = sum(totals) / len(totals)
    return totals


def reply(**facts: Any) -> None:
    print(json.dumps(facts), file=replies, flush=True)


class OneByOne(TrainerCallback):
    """Waits for a line before each step and says how long it took."""

    def wait(self) -> None:
        if not sys.stdin.readline().strip():
            os._exit(0)
        self.began = time.perf_counter()

    def on_train_begin(self, *_: Any, **__: Any) -> None:
        reply(ready=True)
        self.wait()

    def on_step_end(self, *_: Any, **__: Any) -> None:
        reply(seconds=time.perf_counter() - self.began, **seen)
        self.wait()


tokenizer = AutoTokenizer.from_pretrained(settings["model"])
model = AutoModelForCausalLM.from_pretrained(settings["model"], dtype=torch.float32)
batch = settings["prompts_per_step"] * settings["samples_per_prompt"]
config = GRPOConfig(
    output_dir=settings["output"],
    per_device_train_batch_size=batch // settings["microbatches"],
    gradient_accumulation_steps=settings["microbatches"],
    num_generations=settings["samples_per_prompt"],
    max_completion_length=settings["max_tokens"],
    max_steps=len(settings["prompts"]) // settings["prompts_per_step"],
    learning_rate=settings["lr"],
    lr_scheduler_type="constant",
    adam_beta1=0.9,
    adam_beta2=0.95,
    max_grad_norm=1.0,
    temperature=1.0,
    top_k=0,
    top_p=1.0,
    beta=0.0,
    epsilon=0.2,
    loss_type="dapo",
    scale_rewards="group",
    shuffle_dataset=False,
    bf16=False,
    gradient_checkpointing=False,
    use_cpu=True,
    optim="adamw_torch_fused",
    report_to=[],
    save_strategy="no",
    logging_steps=10_000,
    disable_tqdm=True,
    dataloader_num_workers=0,
    remove_unused_columns=False,
    seed=0,
)
data = Dataset.from_list(
    [{"prompt": each["messages"], "facts": json.dumps(each["facts"])} for each in settings["prompts"]]
)
trainer = GRPOTrainer(model, reward, config, train_dataset=data, processing_class=tokenizer)
trainer.add_callback(OneByOne())
trainer.train()
reply(done=True)
