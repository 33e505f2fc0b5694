"""Losses of preference training as TRL computes them: run with the interpreter of TRL's environment, a JSON batch in, a
JSON answer out. Models are tables of log-probabilities."""

import json
import sys
from collections import defaultdict
from types import SimpleNamespace
from typing import Any

import torch
from trl import DPOTrainer, KTOTrainer, RewardTrainer
from trl.experimental.cpo import CPOTrainer

ACCELERATOR = SimpleNamespace(
    device="cpu", gather=lambda x: x, gather_for_metrics=lambda x: x, unwrap_model=lambda model: model
)


class Table(torch.nn.Module):
    """Gives the log-probabilities of the batch it is asked about, told apart by its first token."""

    def __init__(self, **tables: torch.Tensor) -> None:
        super().__init__()
        self.tables = tables

    def forward(self, input_ids: torch.Tensor, **rest: Any) -> SimpleNamespace:
        logprobs = self.tables["aside" if int(input_ids[0, 0]) else "own"]
        zeros = torch.zeros_like(logprobs).detach()
        return SimpleNamespace(
            log_probs=logprobs, entropy=zeros, mean_logits=zeros, is_top1=zeros.bool(), aux_loss=None
        )


def trainer(**settings: Any) -> SimpleNamespace:
    common: dict[str, Any] = {
        "accelerator": ACCELERATOR,
        "model": SimpleNamespace(training=True, is_gradient_checkpointing=False),
        "args": SimpleNamespace(gradient_checkpointing=False, gradient_checkpointing_kwargs=None),
        "aux_loss_enabled": False,
        "precompute_ref_logps": False,
        "_metrics": {"train": defaultdict(list), "eval": defaultdict(list)},
        "_total_train_tokens": 0,
        "_tp_size": 1,
    }
    return SimpleNamespace(**common | settings)


def inputs_of(mask: torch.Tensor, first: int = 0) -> dict[str, torch.Tensor]:
    """A prompt of one token before each answer."""
    whole = torch.cat([torch.zeros(len(mask), 1, dtype=torch.long), mask], 1)
    return {
        "input_ids": torch.full_like(whole, first),
        "attention_mask": torch.ones_like(whole),
        "completion_mask": whole,
    }


def loss_of_pairs(case: dict[str, Any], own: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    reference = Table(own=torch.tensor(case["reference"], dtype=torch.float64) * mask)
    peer = trainer(
        ld_alpha=None,
        beta=case["beta"],
        f_divergence_type="reverse_kl",
        loss_types=["sigmoid" if case["loss"] == "dpo" else "ipo"],
        loss_weights=[1.0],
        use_weighting=False,
        ref_model=reference,
    )
    value: torch.Tensor = DPOTrainer._compute_loss(peer, Table(own=own), inputs_of(mask), False)
    return value


def loss_of_simpo(case: dict[str, Any], own: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    means = own.sum(1) / mask.sum(1)  # as `get_batch_logps(average_log_prob=True)`, which wants logits
    peer = trainer(
        alpha=0.0, beta=case["beta"], loss_type="simpo", simpo_gamma=case["gamma"], label_smoothing=0.0
    )
    losses, _, _ = CPOTrainer.cpo_loss(peer, *means.chunk(2))
    return losses.mean()


def loss_of_kto(case: dict[str, Any], own: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    aside = {
        name: torch.tensor(case[name], dtype=torch.float64) * mask for name in ("aside", "aside_reference")
    }
    reference = torch.tensor(case["reference"], dtype=torch.float64) * mask
    peer = trainer(
        calculate_KL=True,
        beta=case["beta"],
        loss_type="kto",
        desirable_weight=case["good_weight"],
        undesirable_weight=case["bad_weight"],
        ref_model=Table(own=reference, aside=aside["aside_reference"]),
    )
    peer._compute_kl_logps = lambda model, batch: KTOTrainer._compute_kl_logps(peer, model, batch)
    other = {f"KL_{name}": value for name, value in inputs_of(mask, first=1).items()}
    batch = inputs_of(mask) | other | {"label": torch.tensor(case["good"])}
    value: torch.Tensor = KTOTrainer._compute_loss(peer, Table(own=own, aside=aside["aside"]), batch, False)
    return value


def loss_of_reward(case: dict[str, Any], scores: torch.Tensor) -> torch.Tensor:
    peer = trainer(args=SimpleNamespace(center_rewards_coefficient=case["center"]))
    model = lambda **inputs: SimpleNamespace(logits=scores[:, None])  # noqa: E731
    inputs = {"attention_mask": torch.ones(len(scores), 1, dtype=torch.long)}
    value: torch.Tensor = RewardTrainer.compute_loss(peer, model, inputs)
    return value


def answer(case: dict[str, Any]) -> dict[str, Any]:
    table = torch.tensor(case["logprobs"], dtype=torch.float64, requires_grad=True)
    if case["loss"] == "reward":
        value = loss_of_reward(case, table)
    else:
        mask = torch.tensor(case["mask"], dtype=torch.long)
        losses = {"dpo": loss_of_pairs, "ipo": loss_of_pairs, "simpo": loss_of_simpo, "kto": loss_of_kto}
        value = losses[case["loss"]](case, table * mask, mask)
    value.backward()
    assert table.grad is not None
    return {"loss": value.item(), "gradient": table.grad.tolist()}


print(json.dumps([answer(case) for case in json.load(sys.stdin)]))
