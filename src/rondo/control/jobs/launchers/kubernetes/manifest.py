"""TrainJob and JobSet of an attempt. Both run the same shell script in one pod per node."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from rondo.control.config import KubernetesConfig
from rondo.control.jobs.launchers.command import MODULE, WAIT, limited
from rondo.control.jobs.request import ResourceRequest
from rondo.jobs.attempt import VARIABLE
from rondo.jobs.health import FAULTY, NODE_NAME

Kind = Literal["trainjob", "jobset"]
Manifest = dict[str, Any]
GROUPS: Mapping[Kind, tuple[str, str]] = {
    "trainjob": ("trainer.kubeflow.org/v1alpha1", "trainjobs"),
    "jobset": ("jobset.x-k8s.io/v1alpha2", "jobsets"),
}
"""API version and plural name of each kind."""
NODE = "node"
"""Name of the replicated job and of its container, as Trainer's runtime torch-distributed names them."""
PORT = 29500
PYTHON = "python3"
"""Python of the image."""
SECRETS = ("HF_TOKEN", "WANDB_API_KEY", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")
"""Keys of the secret `jobs.kubernetes.secret` that pods receive as variables."""
HEALTH = "{python} -m rondo.jobs.health {folder}"
BEGIN = """\
node=${{PET_NODE_RANK:-${{JOB_COMPLETION_INDEX:-0}}}}
mkdir -p {folder} && cd {folder} || exit 1
[ "$node" = 0 ] || {{ mkdir -p node-$node && cd node-$node || exit 1; }}
rm -f code
: > begun
"""


def manifest_of(
    kind: Kind,
    name: str,
    arguments: Sequence[str],
    request: ResourceRequest,
    config: KubernetesConfig,
    home: str,
    folder: str,
    avoid: Sequence[str] = (),
    keys: Sequence[str] = (),
) -> Manifest:
    """The object of an attempt. `arguments` follow `rondo`, `home` is RONDO_HOME in the pods, and `folder` the
    attempt's folder. Pods start on no node in `avoid`, and receive the variables `keys` from the attempt's
    Secret."""
    labels = {"app.kubernetes.io/name": "rondo-job", "app.kubernetes.io/instance": name}
    if config.queue:
        labels["kueue.x-k8s.io/queue-name"] = config.queue
    container = {
        "image": config.image,
        "command": ["/bin/sh", "-c", _script(arguments, request, folder)],
        "env": _environment(name, config, home, folder, keys),
    }
    body = _trainjob if kind == "trainjob" else _jobset
    return {
        "apiVersion": GROUPS[kind][0],
        "kind": "TrainJob" if kind == "trainjob" else "JobSet",
        "metadata": {"name": name, "namespace": config.namespace, "labels": labels},
        "spec": ({"suspend": True} if config.queue else {})
        | body(name, container, _resources(request, config), request, config, home, _affinity(avoid)),
    }


def secret_of(name: str, env: Mapping[str, str], config: KubernetesConfig) -> Manifest:
    """Secret with the variables of an attempt, such as its key to the gateway."""
    labels = {"app.kubernetes.io/name": "rondo-job", "app.kubernetes.io/instance": name}
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": name, "namespace": config.namespace, "labels": labels},
        "type": "Opaque",
        "stringData": dict(env),
    }


def _trainjob(
    name: str,
    container: Manifest,
    resources: Manifest,
    request: ResourceRequest,
    config: KubernetesConfig,
    home: str,
    affinity: Manifest,
) -> Manifest:
    runtime = {
        "apiGroup": "trainer.kubeflow.org",
        "kind": "ClusterTrainingRuntime",
        "name": config.runtime,
    }
    trainer = {
        **container,
        "numNodes": request.nodes,
        "numProcPerNode": request.ranks_per_node,
        "resourcesPerNode": resources,
    }
    found: Manifest = {"runtimeRef": runtime, "trainer": trainer}
    pod = dict(affinity)
    if config.claim:
        mounted = {"name": NODE, "volumeMounts": [{"name": "home", "mountPath": home}]}
        pod |= {"volumes": [_volume(config.claim)], "containers": [mounted]}
    if pod:
        jobs = [{"name": NODE, "template": {"spec": {"template": {"spec": pod}}}}]
        patch = {"template": {"spec": {"replicatedJobs": jobs}}}
        found["runtimePatches"] = [{"manager": "rondo.dev/launcher", "trainingRuntimeSpec": patch}]
    return found


def _jobset(
    name: str,
    container: Manifest,
    resources: Manifest,
    request: ResourceRequest,
    config: KubernetesConfig,
    home: str,
    affinity: Manifest,
) -> Manifest:
    rank = {"fieldRef": {"fieldPath": "metadata.annotations['batch.kubernetes.io/job-completion-index']"}}
    meeting = {
        "PET_NNODES": str(request.nodes),
        "PET_NPROC_PER_NODE": str(request.ranks_per_node),
        "PET_MASTER_ADDR": f"{name}-{NODE}-0-0.{name}",
        "PET_MASTER_PORT": str(PORT),
    }
    env = [
        *container["env"],
        *({"name": key, "value": value} for key, value in meeting.items()),
        {"name": "PET_NODE_RANK", "valueFrom": rank},
    ]
    main: Manifest = {"name": NODE, **container, "env": env, "resources": resources}
    pod: Manifest = {
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": config.grace_seconds,
        "containers": [main],
        **affinity,
    }
    if config.claim:
        main["volumeMounts"] = [{"name": "home", "mountPath": home}]
        pod["volumes"] = [_volume(config.claim)]
    job = {
        "parallelism": request.nodes,
        "completions": request.nodes,
        "completionMode": "Indexed",
        "backoffLimit": 0,
        "template": {"spec": pod},
    }
    return {
        "failurePolicy": {"maxRestarts": 0},
        "replicatedJobs": [{"name": NODE, "replicas": 1, "template": {"spec": job}}],
    }


def _script(arguments: Sequence[str], request: ResourceRequest, folder: str) -> str:
    command = [PYTHON, "-m", MODULE, *arguments]
    if request.ranks > 1:
        command = [PYTHON, "-m", "torch.distributed.run", "-m", MODULE, *arguments]
    line = f"{shlex.join([*limited(request.time_limit), *command])} > output.log 2>&1 < /dev/null"
    begin, end = BEGIN.format(folder=shlex.quote(folder)), "exit $code\n"
    if request.gpus:
        check = HEALTH.format(python=PYTHON, folder=shlex.quote(folder))
        begin, end = f"{begin}{check} || exit {FAULTY}\n", f"[ $code = 0 ] || {check}\n{end}"
    return begin + WAIT.format(command=line) + end


def _environment(
    name: str, config: KubernetesConfig, home: str, folder: str, keys: Sequence[str]
) -> list[Manifest]:
    """Each variable once. The variables of the attempt's own Secret come first."""
    own = {"RONDO_HOME": home, VARIABLE: f"{folder}/report.json", "PYTHONUNBUFFERED": "1", **config.env}
    found: dict[str, Manifest] = {key: {"value": value} for key, value in own.items()}
    found[NODE_NAME] = {"valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}}
    if config.secret:
        shared = {"name": config.secret, "optional": True}
        found |= {key: {"valueFrom": {"secretKeyRef": {**shared, "key": key}}} for key in SECRETS}
    found |= {key: {"valueFrom": {"secretKeyRef": {"name": name, "key": key}}} for key in keys}
    return [{"name": key, **source} for key, source in found.items()]


def _affinity(avoid: Sequence[str]) -> Manifest:
    """A pod's affinity to all nodes but these."""
    if not avoid:
        return {}
    fields = [{"key": "metadata.name", "operator": "NotIn", "values": [node]} for node in avoid]
    terms = {"nodeSelectorTerms": [{"matchFields": fields}]}
    return {"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}}}


def _resources(request: ResourceRequest, config: KubernetesConfig) -> Manifest:
    requests: dict[str, str] = {"cpu": str(request.cpus_per_node)}
    limits: dict[str, str] = {}
    if request.memory:
        requests["memory"] = limits["memory"] = f"{request.memory}Mi"
    if request.gpus_per_node:
        requests[config.gpu] = limits[config.gpu] = str(request.gpus_per_node)
    return {"requests": requests} | ({"limits": limits} if limits else {})


def _volume(claim: str) -> Manifest:
    return {"name": "home", "persistentVolumeClaim": {"claimName": claim}}
