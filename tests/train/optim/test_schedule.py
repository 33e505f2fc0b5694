import itertools

import pytest
import torch
import transformers

from rondo.train.optim.schedule import learning_rate


@pytest.mark.parametrize("decay", ["cosine", "linear", "wsd"])
def test_schedules_warm_up_and_end_where_they_should(decay: str) -> None:
    def rates(**more: float) -> list[float]:
        return [
            learning_rate(i, lr=2.0, warmup=10, steps=110, decay=decay, **more)  # type: ignore[arg-type]
            for i in range(111)
        ]

    plain = rates(lr_end=0.1)
    assert plain[0] == pytest.approx(0.2)
    assert plain[9] == plain[10] == pytest.approx(2.0)
    assert plain[110] == pytest.approx(0.2)
    assert min(plain[10:]) >= 0.2 - 1e-9
    assert all(a >= b for a, b in itertools.pairwise(plain[10:]))
    if decay == "wsd":
        assert plain[88] == pytest.approx(2.0)
        assert plain[99] == pytest.approx(1.1)
    assert learning_rate(50, lr=2.0, warmup=10, steps=110, decay="constant") == 2.0


@pytest.mark.parametrize("decay", ["cosine", "linear", "wsd"])
def test_schedules_are_transformers_after_the_warm_up(decay: str) -> None:
    warmup, steps = 10, 110
    after = {"min_lr_rate": 0.1} if decay == "cosine" else {}
    name = {"cosine": "cosine_with_min_lr", "linear": "linear", "wsd": "warmup_stable_decay"}[decay]
    if decay == "wsd":
        after = {"num_decay_steps": 22, "min_lr_ratio": 0.1, "decay_type": "linear"}  # type: ignore[dict-item]
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=2.0)
    theirs = transformers.get_scheduler(
        name, optimizer, num_warmup_steps=warmup, num_training_steps=steps, scheduler_specific_kwargs=after
    )
    for step in range(steps):
        if step >= warmup:
            ours = learning_rate(
                step,
                lr=2.0,
                warmup=warmup,
                steps=steps,
                decay=decay,
                lr_end=0.1 if after else 0.0,  # type: ignore[arg-type]
            )
            assert ours == pytest.approx(theirs.get_last_lr()[0]), step
        optimizer.step()
        theirs.step()
