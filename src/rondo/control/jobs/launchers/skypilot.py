"""Task file of SkyPilot for a job, which starts machines at a cloud and runs the job there; a job group for the learner
and the engines of reinforcement learning."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rondo.base.errors import ConfigError
from rondo.control.jobs.launchers.command import MODULE, limited
from rondo.control.jobs.request import ResourceRequest

MIB = 1024
PORT, WEIGHTS = 8001, "/rondo-weights"
"""Port of an engine, and the folder of pushed weights."""
READY = """\
for url in {urls}; do
  for attempt in $(seq 360); do curl -sf "$url" > /dev/null && break; sleep 5; done
  curl -sf "$url" > /dev/null || {{ echo "The engine at $url did not start within half an hour." >&2; exit 1; }}
done
"""
RENDEZVOUS = """\
MASTER_ADDR=$(echo "$SKYPILOT_NODE_IPS" | head -n 1)
"""


def task_of(
    name: str,
    arguments: Sequence[str],
    request: ResourceRequest,
    gpu: str | None,
    files: Mapping[str, str],
) -> dict[str, Any]:
    """The task. `gpu` is SkyPilot's name of an accelerator, `files` are local paths by their path on the machines."""
    resources: dict[str, Any] = {"cpus": f"{request.cpus_per_node}+"}
    if request.memory:
        resources["memory"] = f"{-(-request.memory // MIB)}+"
    if request.gpus_per_node:
        if gpu is None:
            raise ConfigError(
                "--gpus needs the type of GPU for SkyPilot: give --gpu-type, such as H100.", param="gpu_type"
            )
        resources["accelerators"] = f"{gpu}:{request.gpus_per_node}"
    found: dict[str, Any] = {"name": name, "num_nodes": request.nodes, "resources": resources}
    if files:
        found["file_mounts"] = dict(files)
    return {
        **found,
        "secrets": {"HF_TOKEN": "", "WANDB_API_KEY": ""},
        "setup": "pip install rondo-lab\n",
        "run": _run(arguments, request),
    }


@dataclass(frozen=True)
class EngineTasks:
    """The engines of a job group: `count` machines that serve the policy's model."""

    count: int
    model: str
    gpus: int
    cpus: int
    flags: Sequence[str] = ()


def group_of(
    name: str,
    arguments: Sequence[str],
    request: ResourceRequest,
    engines: EngineTasks,
    gpu: str | None,
    files: Mapping[str, str],
) -> list[dict[str, Any]]:
    """Header, learner and engines of a job group. Its end is that of the learner, and new weights reach the engines
    through a bucket that both mount."""
    urls = [f"http://engine-{number}.{name}:{PORT}" for number in range(engines.count)]
    far = (
        f"--rl.engine.url={json.dumps(urls)}",
        "--rl.engine.transport=folder",
        f"--rl.engine.folder={WEIGHTS}",
    )
    own = [*arguments, *far]
    learner = task_of("learner", own, request, gpu, files)
    ready = " ".join(f"{url}/ready" for url in urls)
    learner["run"] = READY.format(urls=ready) + learner["run"]
    model = {path: source for path, source in files.items() if path == engines.model}
    room = ResourceRequest(gpus_per_node=engines.gpus, cpus_per_rank=engines.cpus)
    engine = task_of("engine", [], room, gpu, model) | {"num_nodes": engines.count}
    flags = ["--host=0.0.0.0", f"--port={PORT}", "--allow-public-without-key", *engines.flags]
    serve = shlex.join(["python3", "-m", MODULE, "serve", engines.model, *flags])
    engine["run"] = f'RONDO_SERVER_ADMIN_KEY="$RONDO_ADMIN_KEY" {serve}\n'
    for task in (learner, engine):
        task["secrets"] = {"RONDO_ADMIN_KEY": "", **task["secrets"]}
        bucket = {"name": f"{name}-weights", "mode": "MOUNT"}
        task["file_mounts"] = {**task.get("file_mounts", {}), WEIGHTS: bucket}
    header = {"name": name, "execution": "parallel", "primary_tasks": ["learner"]}
    return [header, learner, engine]


def _run(arguments: Sequence[str], request: ResourceRequest) -> str:
    before = shlex.join(limited(request.time_limit))
    job = shlex.join(["-m", MODULE, *arguments])
    if request.ranks == 1:
        return f"{before} python3 {job}\n".lstrip()
    where = f"--nnodes={request.nodes} --nproc-per-node={request.ranks_per_node}"
    where += ' --node-rank="$SKYPILOT_NODE_RANK" --master-addr="$MASTER_ADDR" --master-port=29500'
    agent = f"python3 -m torch.distributed.run {where} {job}"
    return f"{RENDEZVOUS}{before} {agent}".replace("\n ", "\n") + "\n"
