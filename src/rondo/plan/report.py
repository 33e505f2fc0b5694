"""Plans as text tables and as JSON objects."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rondo.base.units import GIB, human_count
from rondo.plan.choice.planning import TrainingPlan
from rondo.plan.cost.estimate import Estimate
from rondo.plan.serving import GROUPS, Load, Serving, ServingChoice, group_size

GB = 1e9


def as_object(plan: TrainingPlan) -> dict[str, Any]:
    return {
        "profile": plan.profile,
        "fits": plan.chosen is not None and plan.chosen.fits,
        "plan": None if plan.chosen is None else estimate_object(plan.chosen),
        "reasons": plan.reasons,
        "classic": _rules_object(plan),
        "cost": None if plan.cost is None else estimate_object(plan.cost),
        "agrees": plan.agrees,
        "looked_at": plan.found.looked_at,
    }


def _rules_object(plan: TrainingPlan) -> dict[str, Any]:
    rules = plan.rules
    if rules is None:
        return {"plan": None, "reason": plan.no_rules}
    return {
        "plan": estimate_object(rules.plan),
        "rule": rules.rule,
        "branch": rules.branch,
        "over": rules.over,
        "notes": list(rules.notes),
    }


def estimate_object(plan: Estimate) -> dict[str, Any]:
    memory, step = plan.memory, plan.step
    return {
        "model": plan.shape.name,
        "parameters": plan.shape.parameters,
        "active_parameters": plan.shape.active_parameters,
        "gpu": plan.cluster.gpu.name,
        "gpus": plan.cluster.gpus,
        "layout": dict(vars(plan.layout)),
        "policy": {
            "zero": plan.policy.zero,
            "microbatch": plan.policy.microbatch,
            "microbatches": plan.microbatches,
            "checkpointing": plan.policy.checkpointing,
            "precision": plan.policy.precision,
            "offload": plan.policy.offload,
            "loss": plan.policy.loss,
            "optimizer_bytes": plan.policy.optimizer_bytes,
        },
        "tokens_per_step": plan.batch.tokens,
        "sequence": plan.batch.length,
        "fits": plan.fits,
        "memory_bytes": dict(vars(memory)) | {"total": memory.total, "available": plan.cluster.gpu.memory},
        "traffic_bytes": dict(vars(plan.traffic)),
        "bubble": plan.bubble,
        "step_seconds": plan.seconds,
        "seconds": dict(vars(step)),
        "tokens_per_second_per_gpu": plan.speed,
        "tokens_per_second": plan.speed * plan.cluster.gpus,
        "mfu": plan.mfu,
        "mfu_causal": plan.mfu_causal,
        "peak": plan.cluster.gpu.peak(plan.policy.precision),
    }


def lines(plan: TrainingPlan) -> list[str]:
    shape, cluster, batch = plan.task.shape, plan.task.cluster, plan.task.batch
    active = f", {human_count(shape.active_parameters)} active" if shape.experts else ""
    said = [
        f"{shape.name}: {human_count(shape.parameters)} parameters{active}",
        f"{cluster.gpus} x {cluster.gpu.name}, {cluster.gpu.memory / GIB:.0f} GiB each, {cluster.node} per node",
        f"{human_count(batch.tokens)} tokens per step: {batch.sequences} sequences of {batch.length:,}",
        "",
    ]
    columns = _columns(plan)
    if columns:
        said += table([["", *columns], *_rows(list(columns.values()))])
        said.append("")
    if plan.chosen is not None:
        said += ["peak memory per GPU, GiB", *table(_memory_rows(plan.chosen)), ""]
        said += ["communication per GPU and step, GB", *table(_traffic_rows(plan.chosen)), ""]
    said += [f"- {reason}" for reason in plan.reasons]
    said += [f"- {verdict}" for verdict in _verdict(plan)]
    return said


def _columns(plan: TrainingPlan) -> dict[str, Estimate]:
    both: dict[str, Estimate] = {}
    if plan.chosen is not None:
        both["plan"] = plan.chosen
    if plan.profile == "cost" and plan.rules is not None:
        both["classic rules"] = plan.rules.plan
    if plan.profile == "classic" and plan.cost is not None:
        both["cost model"] = plan.cost
    return both


def _rows(plans: Sequence[Estimate]) -> list[list[str]]:
    return [
        ["layout", *(layout_text(plan) for plan in plans)],
        ["memory policy", *(policy_text(plan) for plan in plans)],
        ["microbatch", *(f"{plan.policy.microbatch} x {plan.microbatches}" for plan in plans)],
        [
            "memory",
            *(f"{plan.memory.total / GIB:.1f} GiB{'' if plan.fits else ', DOES NOT FIT'}" for plan in plans),
        ],
        ["step time", *(f"{plan.seconds:.3g} s" for plan in plans)],
        ["tokens/s per GPU", *(f"{plan.speed:,.0f}" for plan in plans)],
        ["tokens/s", *(human_count(int(plan.speed * plan.cluster.gpus)) for plan in plans)],
        ["pipeline bubble", *(f"{plan.bubble:.1%}" for plan in plans)],
        ["MFU, causal MFU", *(f"{plan.mfu:.1%}, {plan.mfu_causal:.1%}" for plan in plans)],
        ["peak for MFU", *(_peak(plan) for plan in plans)],
    ]


def _peak(plan: Estimate) -> str:
    return f"{plan.cluster.gpu.peak(plan.policy.precision) / 1e12:.0f} Tflop/s {plan.policy.precision}"


def layout_text(plan: Estimate) -> str:
    layout = plan.layout
    degrees = [f"dp {layout.dp}"]
    degrees += [
        f"{name} {getattr(layout, name)}" for name in ("tp", "pp", "cp", "ep") if getattr(layout, name) > 1
    ]
    if layout.tp > 1 and plan.policy.sequence_parallel:
        degrees[1] += " + sp"
    if layout.cp > 1:
        degrees[-1 if layout.ep == 1 else -2] += f" ({layout.cp_method})"
    if layout.pp > 1:
        pieces = f" x{layout.virtual}" if layout.virtual > 1 else ""
        degrees.append(f"{layout.schedule}{pieces}")
    return ", ".join(degrees)


def policy_text(plan: Estimate) -> str:
    policy = plan.policy
    words = [f"zero {policy.zero}" if plan.layout.shards > 1 else "no sharding"]
    words.append(
        "no checkpointing" if policy.checkpointing == "none" else f"{policy.checkpointing} checkpointing"
    )
    if policy.offload != "none":
        words.append(f"{policy.offload} offloaded")
    return ", ".join(words)


def _memory_rows(plan: Estimate) -> list[list[str]]:
    memory = plan.memory
    parts = {
        "parameters": memory.parameters,
        "gradients": memory.gradients,
        "optimizer states": memory.optimizer,
        "gathered parameters": memory.gathered,
        "activations": memory.activations,
        "temporary tensors": memory.working,
        "logits": memory.logits,
        "fragmentation": memory.fragmentation,
        "CUDA context and buffers": memory.fixed,
        "host memory": memory.host,
    }
    return [["  " + name, f"{value / GIB:.1f}"] for name, value in parts.items() if value]


def _traffic_rows(plan: Estimate) -> list[list[str]]:
    sent = vars(plan.traffic)
    shown = [["  " + name, f"{value / GB:,.1f}"] for name, value in sent.items() if value]
    return shown or [["  none", ""]]


def _verdict(plan: TrainingPlan) -> list[str]:
    if plan.cost is None:
        return []
    if plan.rules is None:
        return [f"classic rules: no layout ({plan.no_rules.rstrip('.')})"]
    if plan.agrees:
        return ["classic rules: the same plan"]
    other = plan.rules.plan
    said = f"classic rules ({plan.rules.rule}; {plan.rules.branch}): "
    if not other.fits:
        need = f"{other.memory.total / GIB:.1f} GiB of {other.cluster.gpu.memory / GIB:.1f}"
        return [f"{said}out of memory, {need}"]
    more = other.seconds / plan.cost.seconds - 1
    return [f"{said}fits, and a step takes {more:.0%} longer than with the cost model's plan"]


def table(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]


def serving_object(served: ServingChoice, load: Load) -> dict[str, Any]:
    return {
        "load": dict(vars(load)),
        "plan": None if served.best is None else _serving(served.best),
        "reasons": served.reasons,
        "others": [_serving(other) for other in served.others],
    }


def _serving(serving: Serving) -> dict[str, Any]:
    replica = serving.replica
    return {
        "replicas": serving.replicas,
        "tp": replica.tp,
        "gpus": serving.gpus,
        "weights": replica.weights,
        "cache": replica.cache,
        "weight_bytes_per_gpu": replica.weight_bytes,
        "cache_bytes_per_gpu": replica.cache_bytes,
        "cache_tokens": int(
            replica.cache_bytes / replica.request_bytes(replica.load.length) * replica.load.length
        ),
        "most_requests": replica.most_requests,
        "requests": serving.requests,
        "step_tokens": serving.step_tokens,
        "requests_per_second": serving.rate,
        "tokens_per_second": serving.tokens,
        "first_token_seconds": serving.first,
        "token_seconds": serving.between,
        "quantize_flags": quantize_flags(serving),
        "flags": flags(serving),
    }


def flags(serving: Serving) -> list[str]:
    """Flags of `rondo serve`, for each replica."""
    replica = serving.replica
    given = ["--max-num-seqs", str(max(8, 2 * serving.requests)), "--max-model-len", str(replica.load.length)]
    given += ["--max-num-batched-tokens", str(serving.step_tokens)]
    if replica.tp > 1:
        given += ["--tensor-parallel-size", str(replica.tp)]
    if replica.cache == "fp8":
        given += ["--kv-cache-dtype", "fp8"]
    return given


def serving_lines(served: ServingChoice, load: Load, title: str) -> list[str]:
    said = [title, f"{load.rate:g} requests/s, {load.prompt} prompt tokens, {load.answer} output tokens", ""]
    shown = [*([served.best] if served.best else []), *served.others]
    if shown:
        said += [*table([_SERVING_TITLES, *(_serving_row(s, s is served.best) for s in shown)]), ""]
    if served.best is not None:
        model = "MODEL"
        if quantized := quantize_flags(served.best):
            model = "QUANTIZED"
            said.append(f"quantize once: rondo model quantize MODEL {' '.join(quantized)} --out {model}")
        said.append(f"each replica: rondo serve {model} {' '.join(flags(served.best))}")
        said.append("")
    return said + [f"- {reason}" for reason in served.reasons]


def quantize_flags(serving: Serving) -> list[str]:
    """Flags of `rondo model quantize`, which produces the weights; empty if the original weights are served."""
    method = METHODS.get(serving.replica.weights)
    if method is None:
        return []
    group = group_size(serving.replica.shape)
    own = method == "awq" and group != GROUPS[0]
    return ["--method", method, *(["--group-size", str(group)] if own else [])]


METHODS = {"fp8": "fp8", "int8": "int8", "int4": "awq"}
"""Methods of `rondo model quantize`."""
_SERVING_TITLES = [
    "", "weights", "KV cache", "tp", "replicas", "GPUs", "batch", "max batch", "requests/s", "TTFT", "TPOT",
]  # fmt: skip


def _serving_row(serving: Serving, best: bool) -> list[str]:
    replica = serving.replica
    return [
        "plan" if best else "",
        replica.weights,
        replica.cache,
        str(replica.tp),
        str(serving.replicas),
        str(serving.gpus),
        str(serving.requests),
        str(replica.most_requests),
        f"{serving.rate:.3g}",
        f"{1e3 * serving.first:.0f} ms",
        f"{1e3 * serving.between:.1f} ms",
    ]
