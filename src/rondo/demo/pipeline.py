"""The demo pipeline, from pretraining to RL, in minutes on two cores, with generated data only."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path

from rondo import models
from rondo.base.storage.files import atomic_dir, write_json
from rondo.base.storage.home import models_dir
from rondo.base.telemetry.log import get_logger
from rondo.demo import corpus
from rondo.demo.recipe import DemoRecipe, hf_config, recipe_for, tokenizer_for
from rondo.models import Decoder
from rondo.rl.loop import Loop
from rondo.rl.tasks.registry import Task
from rondo.rl.tasks.registry import task as find_task
from rondo.text.tokenizer import Tokenizer
from rondo.train.learner.learner import Learner, Metrics
from rondo.train.loop import Stop, train
from rondo.train.recipes import pretrain, sft

log = get_logger(__name__)

NAME = "demo"
PHASES = ("corpus", "pretrain", "sft", "rl", "save")


@dataclass(frozen=True)
class Event:
    """One step of a phase, with the phase's own metrics."""

    phase: str
    step: int
    steps: int
    metrics: Metrics = field(default_factory=dict)


OnEvent = Callable[[Event], None]


@dataclass(frozen=True)
class DemoResult:
    """Rewards are success rates on held-out prompts, one sample each at temperature 1."""

    task: str
    reward_start: float
    reward_end: float
    steps: int
    seconds: float
    logprob_max_diff: float
    model: str


def ensure_demo_model(progress: OnEvent | None = None) -> Path:
    """The demo model's folder. A missing model is trained first, with the default task and seed."""
    path = models_dir() / NAME
    if not (path / "config.json").is_file():
        run_demo(on_event=progress or _log_event)
    return path


def run_demo(
    task: str = "reverse",
    seed: int = 0,
    recipe: DemoRecipe | None = None,
    on_event: OnEvent | None = None,
    name: str = NAME,
) -> DemoResult:
    """Generate corpus, tokenizer and model, run pretraining, SFT and RL, and save the model. Deterministic for a
    seed.
    """
    begin = time.perf_counter()
    recipe, say = recipe or recipe_for(task), on_event or (lambda event: None)
    made = prepare(task, seed, recipe, say)
    steps, logprob_max_diff = _reinforce(made.grpo, recipe, say)
    reward_end = made.grpo.evaluate(seed=1)["reward/correct"]

    path = models_dir() / name
    seconds = time.perf_counter() - begin
    result = DemoResult(task, made.reward, reward_end, steps, seconds, logprob_max_diff, str(path))
    say(Event("save", 0, 1))
    save(made.model, made.tokenizer, result, path)
    say(Event("save", 1, 1, {"seconds": seconds}))
    return result


@dataclass(frozen=True)
class DemoModel:
    """A model with occasional success, and the loop that trains it by RL."""

    model: Decoder
    tokenizer: Tokenizer
    grpo: Loop
    reward: float


def prepare(task: str, seed: int, recipe: DemoRecipe, say: OnEvent = lambda event: None) -> DemoModel:
    """Run all phases before RL."""
    say(Event("corpus", 0, 1))
    tokenizer = tokenizer_for(seed)
    texts = corpus.stories(seed, recipe.stories) + corpus.sums(seed, recipe.sums)
    model = models.new(hf_config(recipe, tokenizer), seed=seed)
    grpo = Loop(model, tokenizer, find_task(task), recipe.reinforcement(task, seed))
    parameters = sum(p.numel() for p in model.parameters())
    say(Event("corpus", 1, 1, {"parameters": parameters, "vocabulary": tokenizer.vocab_size}))
    plan = recipe.pretraining(seed)
    train(
        Learner(model, plan),
        pretrain.batches(pretrain.documents(tokenizer, texts), plan),
        plan,
        on_step=lambda step, metrics: say(Event("pretrain", step, plan.steps, metrics)),
    )
    reward = _tune(grpo, find_task(task), recipe, seed, say)
    return DemoModel(model, tokenizer, grpo, reward)


def save(model: Decoder, tokenizer: Tokenizer, result: DemoResult, path: Path) -> None:
    """Save in Hugging Face's layout, atomically, in place of an earlier model."""
    with atomic_dir(path, replace=True) as folder:
        models.save_into(model, folder)
        tokenizer.save(folder)
        write_json(folder / "demo.json", asdict(result))


def _tune(grpo: Loop, task: Task, recipe: DemoRecipe, seed: int, say: OnEvent) -> float:
    """SFT on solved problems until the success rate is `sft_until`. Returns the success rate at the end."""
    config = recipe.tuning(seed)
    solved = corpus.solved(task, seed, recipe.sft_examples)
    examples = sft.examples(grpo.tokenizer, solved, config.max_length)

    def on_step(step: int, metrics: Metrics) -> None:
        if step % recipe.sft_check_every == 0 or step == config.steps:
            grpo.push()
            metrics = metrics | grpo.evaluate()
        say(Event("sft", step, config.steps, metrics))
        if metrics.get("reward/correct", 0.0) >= recipe.sft_until:
            raise Stop

    train(Learner(grpo.learner.model, config), sft.batches(examples, config), config, on_step=on_step)
    return grpo.evaluate(seed=1)["reward/correct"]


def _reinforce(grpo: Loop, recipe: DemoRecipe, say: OnEvent) -> tuple[int, float]:
    """RL until the success rate is `rl_until`. Returns the steps and the largest log-probability difference."""
    largest = 0.0
    for step in range(1, recipe.rl_steps + 1):
        metrics = grpo.step()
        largest = max(largest, metrics.get("logprob_diff_max", 0.0))
        if step % recipe.rl_check_every == 0:
            metrics["held_out"] = grpo.evaluate()["reward/correct"]
        say(Event("rl", step, recipe.rl_steps, metrics))
        if metrics.get("held_out", 0.0) >= recipe.rl_until:
            break
    return step, largest


def _log_event(event: Event) -> None:
    if event.step in (0, event.steps) or event.step % 10 == 0:
        known: dict[str, object] = {
            n: round(event.metrics[n], 3) for n in ("loss", "reward/correct") if n in event.metrics
        }
        log.info(f"demo: {event.phase} {event.step} of at most {event.steps}", extra=known)
