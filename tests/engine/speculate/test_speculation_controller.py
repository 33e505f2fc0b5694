"""The controller against machines that are told by a formula: what it costs, and what it gains."""

import random
from collections.abc import Callable

import pytest

from rondo.engine.speculate.controller import Controller

Machine = Callable[[int], tuple[float, float]]
"""Step -> (what it costs with speculation, how many tokens of each request it accepts), where one without costs 1."""


def run(
    steps: int, machine: Machine, load: int = 4, noise: float = 0.0, seed: int = 0
) -> tuple[float, float]:
    """(seconds, what the same tokens take without speculation)."""
    rng = random.Random(seed)
    controller = Controller()
    spent = tokens = 0.0
    for step in range(steps):
        speculate = controller.allows(load)
        cost, accepted = machine(step) if speculate else (1.0, 0.0)
        spent += cost
        tokens += 1 + accepted
        jitter = 1 + noise * rng.expovariate(1.0)
        controller.observe(load, cost * jitter, round(accepted * load), speculate)
    return spent, tokens


@pytest.mark.parametrize("cost", [1.02, 1.1, 1.5, 3.0, 10.0])
@pytest.mark.parametrize("noise", [0.0, 0.1])
@pytest.mark.parametrize("steps", [100, 1000, 10000])
def test_it_never_costs_more_than_a_twentieth(cost, noise, steps):
    spent, alone = run(steps, lambda step: (cost, 0.0), noise=noise)
    assert spent < 1.05 * alone + (cost if steps == 100 else 0)


def test_a_loss_that_lasts_is_tried_ever_more_rarely():
    spent, alone = run(100_000, lambda step: (2.0, 0.25))
    assert spent < 1.01 * alone


@pytest.mark.parametrize(("cost", "accepted"), [(1.1, 0.5), (1.5, 2.0), (3.0, 4.0)])
@pytest.mark.parametrize("noise", [0.0, 0.2])
def test_it_keeps_what_is_to_be_gained(cost, accepted, noise):
    spent, alone = run(2000, lambda step: (cost, accepted), noise=noise)
    assert alone / spent > 1 + 0.9 * ((1 + accepted) / cost - 1)


def test_it_follows_a_text_that_changes():
    """A thousand steps that lose, a thousand that gain, and so on."""
    spent, alone = run(8000, lambda step: (1.3, 2.0 if step // 1000 % 2 else 0.0))
    best = 4000 + 4000 * 1.3 / 3
    assert alone / spent > 1.3
    assert spent < 1.05 * alone
    assert best < spent


def test_one_slow_step_changes_little():
    """A pause of the machine is not the fault of speculation."""
    spent, alone = run(2000, lambda step: (1.2 if step % 100 else 30.0, 1.0))
    assert alone / (spent - 20 * 28.8) > 1.4


def test_each_load_has_its_own_account():
    controller = Controller()
    for _ in range(600):
        for load, cost in ((1, 1.2), (64, 3.0)):
            speculate = controller.allows(load)
            seconds, accepted = (cost, load) if speculate else (1.0, 0)
            controller.observe(load, seconds, accepted, speculate)
    assert controller.allows(1)
    assert not controller.allows(64)


def test_the_steps_that_count_are_measured_before_and_again():
    controller = Controller()
    choices = []
    for _ in range(1000):
        speculate = controller.allows(1)
        choices.append(speculate)
        controller.observe(1, 1.0, 3 * speculate, speculate)
    assert not any(choices[:8])
    assert sum(choices) > 950
    assert not all(choices[300:])
