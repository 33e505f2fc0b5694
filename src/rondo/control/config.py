"""Settings of the durable queue, the router and jobs."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from rondo.base.settings.config import Section


class QueueConfig(Section):
    lease: float = Field(60.0, gt=0, description="seconds without a heartbeat after which a lease expires")
    attempts: int = Field(3, gt=0, description="attempts before a request becomes a dead letter")
    rest: float = Field(1.0, ge=0, description="seconds before the second attempt; doubles with each attempt")
    longest_rest: float = Field(60.0, ge=0, description="maximum seconds between two attempts")
    keep: float = Field(
        7 * 86400.0, ge=0, description="seconds that results are retained after their group ended"
    )
    sweep_every: float = Field(
        2.0, gt=0, le=5, description="seconds between two looks for expired leases and ended rests"
    )
    prune_every: float = Field(60.0, ge=0, description="seconds between two deletions of old groups")


class FilesConfig(Section):
    folder: str | None = Field(
        None, min_length=1, description="folder of the contents of files; default: RONDO_HOME/files"
    )
    file_bytes: int = Field(16 << 30, ge=1, description="largest file")
    owner_bytes: int | None = Field(
        None, ge=1, description="largest total of a key's files and unfinished uploads; default: no limit"
    )
    batch_file_seconds: int | None = Field(
        30 * 86400,
        ge=3600,
        description="life of files of purpose batch that state no expires_after; none: until they are deleted",
    )
    upload_seconds: float = Field(
        3600.0, gt=0, description="time in which the parts of a multipart upload must be completed"
    )
    sweep_seconds: float = Field(60.0, gt=0, description="time between two deletions of expired objects")


class BatchesConfig(Section):
    lines: int = Field(1_000_000, ge=1, description="most requests in the input file of a batch")
    line_bytes: int = Field(16 << 20, ge=1, description="largest request in the input file of a batch")
    priority: int = Field(
        10,
        ge=-1000,
        le=1000,
        description="priority of a batch's requests in the queue; lower is served first",
    )
    at_once: int = Field(4, ge=1, description="batches that a gateway reads and writes at the same time")
    poll_seconds: float = Field(1.0, gt=0, description="time between two looks at running batches")
    duty_seconds: float = Field(
        10.0, gt=0, description="time after which another gateway drives the batches of one that vanished"
    )
    owner_batches: int | None = Field(
        None, ge=1, description="most unfinished batches of a key; default: no limit"
    )


class ResponsesConfig(Section):
    store: Literal["default", "on_request", "never"] = Field(
        "default",
        description="which responses of /v1/responses are stored; default: as in OpenAI's API, all but those with "
        "store: false; chat completions are stored with store: true, except with never",
    )
    keep_seconds: float | None = Field(
        30 * 86400.0, gt=0, description="life of a stored response; none: until it is deleted"
    )


class RouterConfig(Section):
    failures: int = Field(3, gt=0, description="consecutive failures that open an engine's circuit breaker")
    shut: float = Field(
        5.0, gt=0, description="seconds before an open circuit breaker lets one request through"
    )
    piece: int = Field(1024, gt=0, description="bytes per prefix piece")
    pieces: int = Field(65536, gt=0, description="prefix pieces remembered per engine")
    longest: int = Field(256, gt=0, description="prefix pieces considered per prompt")
    kv_events: bool = Field(
        True, description="follow the prefixes in the caches of engines that report them (GET /v1/kv_events)"
    )
    decode_factor: float = Field(
        1.0,
        ge=0,
        description="work of one byte of an answer, as a multiple of one byte of an uncached prompt",
    )
    requests_per_engine: int | None = Field(
        None,
        gt=0,
        description="requests that an engine answers at once; the others wait in the gateway's queue. By default the "
        "largest batch that the engine reports; an engine that reports none has no limit",
    )
    backlog: int = Field(
        2,
        ge=0,
        description="requests that an engine receives beyond its largest batch, so that it stays full",
    )
    queue_seconds: float = Field(
        60.0, gt=0, description="longest wait of a request in the queue before it is answered with status 429"
    )
    queue_requests: int = Field(5000, ge=0, description="requests that may wait in the queue")
    queue_bytes: int = Field(256 << 20, ge=0, description="bytes of the bodies of all waiting requests")
    preemptions: int = Field(
        2,
        ge=0,
        description="times that a running request without a byte of response returns to the queue for a request of a "
        "higher service tier",
    )


class SlurmConfig(Section):
    partition: str | None = Field(None, description="partition of jobs; default: the cluster's")
    account: str | None = Field(None, description="account of jobs")
    qos: str | None = Field(None, description="quality of service of jobs")
    gres: str = Field("gpu", min_length=1, description="generic resource of GPUs, such as gpu or gpu:h100")
    start: Literal["torchrun", "mpirun", "srun"] = Field(
        "torchrun", description="program that starts the ranks of a job"
    )
    python: str | None = Field(None, description="Python on the nodes; default: the gateway's")
    options: list[str] = Field([], description='further options of sbatch, such as ["--exclusive"]')
    grace_seconds: float = Field(
        60.0,
        ge=1,
        description="seconds before the time limit at which a job saves, to continue in another attempt",
    )


class KubernetesConfig(Section):
    namespace: str = Field("default", min_length=1, description="namespace of jobs")
    image: str = Field("rondo:latest", min_length=1, description="image of jobs, with Rondo installed")
    kind: Literal["auto", "trainjob", "jobset"] = Field(
        "auto", description="object of a job; auto: a TrainJob, or a JobSet where Trainer is not installed"
    )
    runtime: str = Field("torch-distributed", min_length=1, description="ClusterTrainingRuntime of TrainJobs")
    queue: str | None = Field(None, min_length=1, description="LocalQueue of Kueue that admits jobs")
    claim: str | None = Field(
        None,
        min_length=1,
        description="persistent volume claim with RONDO_HOME; the gateway and all pods mount it at the same path",
    )
    secret: str | None = Field(
        None, min_length=1, description="Secret with HF_TOKEN, WANDB_API_KEY and AWS keys for jobs"
    )
    gpu: str = Field("nvidia.com/gpu", min_length=1, description="resource name of GPUs")
    env: dict[str, str] = Field({}, description="further environment variables of jobs")
    grace_seconds: int = Field(60, ge=1, description="seconds in which a deleted job may save")
    api: str | None = Field(
        None, description="URL of the Kubernetes API; default: the API of the pod's cluster"
    )
    account: str = Field(
        "/var/run/secrets/kubernetes.io/serviceaccount",
        description="folder with the service account's token and ca.crt",
    )


class RayJobsConfig(Section):
    address: str = Field(
        "http://127.0.0.1:8265", min_length=1, description="URL of the dashboard of a cluster"
    )
    token: str | None = Field(None, min_length=1, description="token of the cluster, where it requires one")
    python: str | None = Field(None, description="Python on the nodes; default: the gateway's")
    grace_seconds: int = Field(60, ge=1, description="seconds in which a stopped job may save")


LauncherName = Literal["local", "slurm", "kubernetes", "ray"]


class JobsConfig(Section):
    launcher: LauncherName = Field(
        "local", description="where submitted jobs run by default; local: on this machine"
    )
    launchers: list[LauncherName] = Field(
        [], description='further launchers that a request may name, such as ["slurm"]'
    )
    time_limit: int | None = Field(
        None,
        ge=1,
        description="default limit of an attempt in seconds; then the job saves, and continues in another attempt",
    )
    gpu_type: str | None = Field(
        None,
        min_length=1,
        description="type of the GPUs of jobs as `rondo plan --gpu` names it, such as h100; the planner then chooses "
        "the layout of a full-weight job, and its number of GPUs where the request has none",
    )
    slurm: SlurmConfig = Field(SlurmConfig(), description="jobs in a Slurm cluster")
    ray: RayJobsConfig = Field(RayJobsConfig(), description="jobs in a Ray cluster")
    kubernetes: KubernetesConfig = Field(KubernetesConfig(), description="jobs in a Kubernetes cluster")
    slots: int = Field(
        1, ge=0, description="jobs without GPUs that run at the same time on this machine; 0: none"
    )
    gpus: list[int] = Field(
        [], description="numbers of the GPUs that jobs on this machine may use, such as [0, 1]"
    )
    fine_tuning_gpus: int | None = Field(
        None,
        ge=0,
        description="GPUs of a fine-tuning job whose request names none; default: 1 if the launcher has GPUs",
    )
    nice: int = Field(
        5, ge=0, le=19, description="niceness of jobs on this machine, so that requests come first"
    )
    attempts: int = Field(3, gt=0, description="failed attempts of a job before it has failed")
    displacements: int = Field(
        10,
        gt=0,
        description="attempts in a row that a lost node, a GPU fault or preemption may end without a new checkpoint "
        "before a job has failed",
    )
    retry_seconds: float = Field(
        5.0, ge=0, description="seconds before the second attempt; doubles with each one"
    )
    longest_retry_seconds: float = Field(300.0, ge=0, description="maximum seconds between two attempts")
    grace_seconds: float = Field(
        60.0, ge=0, description="seconds in which a cancelled or pausing job may save, before it is killed"
    )
    silent_seconds: float = Field(
        120.0,
        gt=0,
        description="seconds without a heartbeat after which a rank is reported as late; after twice as many, the "
        "attempt ends and the job continues in another one",
    )
    poll_seconds: float = Field(1.0, gt=0, description="seconds between two passes of the reconciler")
    secret_keys: list[str] = Field(
        ["local"],
        description="ids of the API keys whose jobs receive HF_TOKEN, WANDB_API_KEY and the AWS keys of the gateway's "
        "environment; local: requests without a key; *: all",
    )
    gateway_url: str | None = Field(
        None,
        description="URL of this gateway for judges and programs of jobs; default: its address on this machine",
    )
    code_memory_bytes: int = Field(
        16 << 30, ge=1 << 26, description="address space of each process of a program that a user submits"
    )
    code_file_bytes: int = Field(16 << 30, ge=1 << 20, description="largest file that such a program writes")
    code_cpu_seconds: int = Field(
        24 * 3600, ge=1, description="CPU time of each process of such a program, in seconds"
    )
    embedding_model: str | None = Field(
        None,
        min_length=1,
        description="embedding model of graders with the metric cosine that name none, as in OpenAI's requests",
    )
    weights_cache_bytes: int = Field(
        100 << 30,
        ge=1,
        description="largest size of the local copies of registered weights in object stores; the least recently used "
        "files are removed first",
    )
