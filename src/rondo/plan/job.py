"""A plan as a job: the settings of `rondo train` for its layout, and the launch command."""

from __future__ import annotations

import json
import math
from typing import Any

from rondo.plan.cost.estimate import Estimate

PRECISIONS = {"bf16": "bfloat16", "fp16": "float16", "fp8": "fp8"}
LOGITS = {"plain": "whole", "chunked": "chunked"}
DATA = "DATA"
"""Placeholder of the training files, which are not part of a plan."""

Settings = dict[str, dict[str, Any]]


def config(plan: Estimate, optimizer: str = "adamw") -> Settings:
    """Settings by table of the config file. Layers compute in the plan's precision with float32 weights."""
    policy, batch = plan.policy, plan.batch
    train = {
        "tokens_per_step": batch.tokens,
        "tokens_per_microbatch": policy.microbatch * batch.length,
        "max_length": batch.length,
        "optimizer": optimizer,
        "precision": PRECISIONS[policy.precision],
        "checkpointing": policy.checkpointing,
        "logits": LOGITS[policy.loss],
        "offload": policy.offload,
    }
    return {"train": train, "train.layout": layout(plan)}


def layout(plan: Estimate) -> dict[str, Any]:
    """Settings under `train.layout`."""
    own = plan.layout
    return {
        "dp": own.dp,
        "zero": plan.policy.zero,
        "tp": own.tp,
        "cp": own.cp,
        "cp_method": own.cp_method,
        "pp": own.pp,
        "schedule": "1f1b" if own.schedule == "none" else own.schedule,
        "virtual": own.virtual,
        "ep": own.ep,
    }


def toml(settings: Settings) -> str:
    tables = []
    for name, table in settings.items():
        lines = (f"{key} = {json.dumps(value)}" for key, value in table.items())
        tables.append("\n".join([f"[{name}]", *lines]))
    return "\n\n".join(tables) + "\n"


def command(plan: Estimate, model: str, file: str) -> list[str]:
    """torchrun on each node, or `rondo` itself for one GPU."""
    cluster, job = plan.cluster, ["train", "pretrain", "--config", file, "--model", model, "--data", DATA]
    if cluster.gpus == 1:
        return ["rondo", *job]
    per_node = math.gcd(cluster.gpus, cluster.node)  # torchrun starts the same number of ranks on each node
    nodes = cluster.gpus // per_node
    where = ["--standalone"]
    if nodes > 1:
        where = [f"--nnodes={nodes}", "--rdzv-backend=c10d", "--rdzv-endpoint=FIRST_NODE:29500"]
    return ["torchrun", *where, f"--nproc-per-node={per_node}", "-m", "rondo", *job]
