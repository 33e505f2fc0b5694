"""vLLM's flag names for `rondo serve`, mapped to the config tree.

A flag either sets a value, or requests the engine's fixed behaviour (`AS_IT_IS`), or is refused with an alternative
(`REFUSED`). No flag is ignored.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from rondo.base.errors import ConfigError

Settings = Mapping[str, str]

DTYPES = {"half": "float16", "float": "float32"}
KV_DTYPES = {"fp8_e4m3": "fp8"}


@dataclass(frozen=True)
class Flag:
    """`read` converts the text after the flag to settings, for all occurrences if the flag may be repeated. A flag with
    `alone` takes no text: that is its value."""

    text: str
    """Description; empty: the one of the setting `path`."""
    group: str
    read: Callable[[Sequence[str]], Settings]
    name: str = "VALUE"
    alone: str | None = None
    several: bool = False
    path: str = ""


def setting(path: str, group: str, spell: Callable[[str], str] = str, text: str = "") -> Flag:
    return Flag(
        text, group, lambda values: {path: spell(values[-1])}, path.rpartition(".")[2].upper(), path=path
    )


def several(path: str, group: str) -> Flag:
    """Given again, it adds one more."""
    name = path.rpartition(".")[2].upper()
    return Flag("", group, lambda values: {path: json.dumps(list(values))}, name, several=True, path=path)


def switch(path: str, value: bool, group: str, text: str = "") -> Flag:
    return Flag(text, group, lambda values: {path: values[-1]}, alone=str(value).lower(), path=path)


def count(text: str) -> str:
    """`auto` and -1 leave the value to the model."""
    return "none" if text in ("auto", "-1") else text


def gibibytes(text: str) -> str:
    try:
        return str(int(float(text) * 2**30))
    except (ValueError, OverflowError):
        raise ConfigError(f"{text!r} is not a number of GiB.", code="invalid_value") from None


def policy(text: str) -> str:
    if text not in ("fcfs", "priority"):
        raise ConfigError(f"--scheduling-policy is fcfs or priority, not {text!r}.", param="allow_priority")
    return "true" if text == "priority" else "false"


def adapters(values: Sequence[str]) -> Settings:
    """`name=path`, or `{"name": ..., "path": ...}`."""
    found: dict[str, str] = {}
    for value in values:
        name, equals, path = value.partition("=")
        if value.lstrip().startswith("{"):
            module = _json(value, "--lora-modules", {"name", "path", "base_model_name"})
            name, path, equals = str(module.get("name", "")), str(module.get("path", "")), "="
        if not (name and equals and path):
            raise ConfigError(f"--lora-modules takes name=folder, not {value!r}.", param="server.adapters")
        if name in found:
            raise ConfigError(f"--lora-modules has two adapters called {name!r}.", param="server.adapters")
        found[name] = path
    return {"server.adapters": json.dumps(found)}


def speculation(values: Sequence[str]) -> Settings:
    """vLLM's JSON for the two supported methods."""
    names = {
        "num_speculative_tokens": "engine.speculation_tokens",
        "prompt_lookup_min": "engine.ngram_min",
        "prompt_lookup_max": "engine.ngram_max",
        "model": "engine.draft_model",
    }
    given = _json(values[-1], "--speculative-config", {"method", *names})
    method = given.pop("method", "draft_model" if "model" in given else "ngram")
    if method not in ("ngram", "draft_model"):
        raise ConfigError(
            f"--speculative-config: the method {method!r} is not here; there are 'ngram' and 'draft_model'.",
            param="engine.speculation",
        )
    if method == "ngram":
        given.pop("model", None)  # vLLM takes "ngram" for its name, too
    settings = {names[key]: str(value) for key, value in given.items()}
    return {"engine.speculation": "ngram" if method == "ngram" else "draft"} | settings


def _json(text: str, flag: str, known: set[str]) -> dict[str, object]:
    try:
        given = json.loads(text)
    except ValueError as error:
        raise ConfigError(f"{flag} is not valid JSON: {error}.") from None
    if not isinstance(given, dict):
        raise ConfigError(f"{flag} must be a JSON object.")
    unknown = given.keys() - known
    if unknown:
        raise ConfigError(f"{flag} has no {min(unknown)!r} here; it takes {', '.join(sorted(known))}.")
    return given


MODEL, LIMITS, CACHE, RANKS = "model", "limits", "KV cache", "processes and devices"
ADAPTERS, GUESSES, SERVER, LOGS = "adapters", "speculative decoding", "server", "logs, metrics and traces"

FLAGS: dict[str, Flag] = {
    "--engine": setting("engine.backend", MODEL),
    "--engine-mode": setting("engine.vllm.mode", MODEL),
    "--host": setting("server.host", SERVER),
    "--port": setting("server.port", SERVER),
    "--api-key": several("server.api_key", SERVER),
    "--allow-public-without-key": switch("server.allow_public_without_key", True, SERVER),
    "--allowed-hosts": several("server.allowed_hosts", SERVER),
    "--served-model-name": several("server.served_model_name", SERVER),
    "--scheduling-policy": setting(
        "server.allow_priority",
        SERVER,
        policy,
        "fcfs, or priority: clients may set the priority of a request",
    ),
    "--shutdown-timeout": setting("server.drain_seconds", SERVER),
    "--chat-template": setting("server.chat_template", MODEL),
    "--tool-call-parser": setting("server.tool_call_parser", MODEL),
    "--reasoning-parser": setting("server.reasoning_parser", MODEL),
    "--enable-auto-tool-choice": switch("server.auto_tool_choice", True, MODEL),
    "--dtype": setting("engine.dtype", MODEL, lambda text: DTYPES.get(text, text)),
    "--seed": setting("engine.seed", MODEL),
    "--max-model-len": setting("engine.max_model_len", LIMITS, count),
    "--max-num-seqs": setting("engine.max_num_seqs", LIMITS),
    "--max-num-batched-tokens": setting("engine.max_step_tokens", LIMITS, count),
    "--max-num-queued-reqs": setting("engine.max_queued", LIMITS),
    "--kv-cache-dtype": setting("engine.kv_dtype", CACHE, lambda text: KV_DTYPES.get(text, text)),
    "--kv-cache-memory-bytes": setting("engine.kv_cache_bytes", CACHE, count),
    "--num-gpu-blocks-override": setting("engine.num_blocks", CACHE),
    "--block-size": setting("engine.block_size", CACHE),
    "--enable-prefix-caching": switch("engine.prefix_cache", True, CACHE),
    "--no-enable-prefix-caching": switch("engine.prefix_cache", False, CACHE, "turn prefix caching off"),
    "--swap-space": setting(
        "engine.swap_bytes", CACHE, gibibytes, "GiB of host memory for the KV cache of preempted requests (0)"
    ),
    "--tensor-parallel-size": setting("engine.tensor_parallel", RANKS),
    "--device": setting("engine.device", RANKS),
    "--threads": setting("engine.threads", RANKS),
    "--lora-modules": Flag(
        "adapters to load at the start, as NAME=FOLDER, NAME=JOB or NAME=ORG/NAME",
        ADAPTERS,
        adapters,
        "NAME=FOLDER",
        several=True,
    ),
    "--max-loras": setting("engine.max_loaded_adapters", ADAPTERS),
    "--max-lora-rank": setting("engine.max_adapter_rank", ADAPTERS),
    "--speculative-config": Flag(
        'JSON: {"method": "ngram" or "draft_model", "model": ..., "num_speculative_tokens": 4}',
        GUESSES,
        speculation,
        "JSON",
    ),
    "--otlp-traces-endpoint": setting("server.otlp_traces_endpoint", LOGS),
    "--disable-uvicorn-access-log": switch("server.access_log", False, LOGS, "turn the access log off"),
    "--uvicorn-log-level": setting("log.level", LOGS),
}
ALIASES = {"-tp": "--tensor-parallel-size", "-sc": "--speculative-config"}

AS_IT_IS: dict[str, frozenset[str]] = {
    "--enable-lora": frozenset(),
    "--enable-chunked-prefill": frozenset(),
    "--enable-sleep-mode": frozenset(),
    "--enable-request-id-headers": frozenset(),
    "--enable-prompt-tokens-details": frozenset(),
    "--enforce-eager": frozenset(),
    "--disable-log-stats": frozenset(),
    "--disable-frontend-multiprocessing": frozenset(),
    "--load-format": frozenset({"auto", "safetensors"}),
    "--generation-config": frozenset({"vllm"}),
    "--chat-template-content-format": frozenset({"auto", "string"}),
    "--tokenizer-mode": frozenset({"auto"}),
    "--runner": frozenset({"auto", "generate"}),
    "--response-role": frozenset({"assistant"}),
    "--distributed-executor-backend": frozenset({"mp"}),
    "--pipeline-parallel-size": frozenset({"1"}),
    "--data-parallel-size": frozenset({"1"}),
    "--stream-interval": frozenset({"1"}),
    "--cpu-offload-gb": frozenset({"0"}),
}
"""Values with which a flag requests the engine's fixed behaviour; an empty set: the flag without a value."""

OF_VLLM = {
    "--enforce-eager": "--engine.vllm.args='[\"--enforce-eager\"]'",
    "--enable-lora": "--engine.vllm.adapters=true",
}
"""Fixed behaviour of the native engine that is optional in vLLM, and the setting for vLLM."""

REFUSED: dict[str, str] = {
    "--gpu-memory-utilization": "the KV cache takes what --max-num-seqs and --max-model-len need; "
    "--kv-cache-memory-bytes says how much instead",
    "--pipeline-parallel-size": "a model is divided by --tensor-parallel-size alone",
    "--data-parallel-size": "start one server for each copy, and put a balancer before them",
    "--decode-context-parallel-size": "a model is divided by --tensor-parallel-size alone",
    "--enable-expert-parallel": "experts are divided by their inner size: --tensor-parallel-size",
    "--distributed-executor-backend": "the ranks are processes of this machine (mp); leave it out",
    "--quantization": "weights are computed in the type they are stored in, or in --dtype; leave it out",
    "--load-format": "safetensors and GGUF files are recognized; leave it out",
    "--generation-config": "requests say how to sample; leave it out",
    "--override-generation-config": "requests say how to sample; leave it out",
    "--trust-remote-code": "a checkpoint's code is never run; the known families need none",
    "--tokenizer": "the tokenizer is the model's own: copy its files into the model's folder",
    "--tokenizer-mode": "the tokenizer is the one of the model's folder; leave it out",
    "--revision": "the revision is a part of the name: ORG/NAME@REVISION",
    "--download-dir": "downloads are in the Hugging Face cache, whose folder HF_HOME sets",
    "--hf-overrides": "edit the model's config.json instead",
    "--hf-token": "the token is read from HF_TOKEN or `hf auth login`",
    "--max-cpu-loras": "all loaded adapters are in one place: --max-loras bounds them",
    "--lora-dtype": "adapters are computed in the model's type; leave it out",
    "--fully-sharded-loras": "adapters are divided as their modules are; leave it out",
    "--kv-offloading-size": "--swap-space is host memory for the blocks of requests that gave way",
    "--kv-transfer-config": "keys and values stay in the engine that made them; leave it out",
    "--cpu-offload-gb": "all weights are on the device; take a smaller model or --tensor-parallel-size",
    "--no-enable-chunked-prefill": "long prompts are always cut; --max-num-batched-tokens says into what",
    "--weight-transfer-config": "POST /update_weights takes a folder of safetensors as it is; leave it out",
    "--worker-extension-cls": "no code is loaded into the engine; leave it out",
    "--worker-cls": "no code is loaded into the engine; leave it out",
    "--scheduler-cls": "no code is loaded into the engine; leave it out",
    "--logits-processors": "no code is loaded into the engine; requests have logit_bias",
    "--middleware": "no code is loaded into the server; put a proxy before it",
    "--ssl-keyfile": "put a proxy that speaks TLS before the server",
    "--ssl-certfile": "put a proxy that speaks TLS before the server",
    "--root-path": "let the proxy remove the path",
    "--allowed-origins": "let the proxy add the CORS headers",
    "--chat-template-content-format": "templates get each message's content as one text; leave it out",
    "--response-role": "answers are the assistant's; leave it out",
    "--runner": "a server generates, and embeds under /v1/embeddings; leave it out (vLLM's: --engine.vllm.runner)",
    "--task": "a server generates, and embeds under /v1/embeddings; leave it out",
    "--convert": "a server generates, and embeds under /v1/embeddings; leave it out (vLLM's: --engine.vllm.runner)",
    "--compilation-config": "nothing is compiled at the start; leave it out",
    "--attention-backend": "it is chosen for the machine; RONDO_OPS=reference takes plain torch",
    "--stream-interval": "each token is sent as it comes; leave it out",
    "--limit-mm-per-prompt": "models read text alone; leave it out",
    "--max-logprobs": "20 are the most over HTTP; leave it out",
    "--long-prefill-token-threshold": "--max-num-batched-tokens bounds the piece of a prompt in a step",
    "--collect-detailed-traces": "spans have the queue, the prompt and the answer; leave it out",
    "--enable-log-requests": "prompts are not logged; each request has one line, without its text",
    "--structured-outputs-config": "one engine keeps all forms; requests say which form they want",
    "--guided-decoding-backend": "one engine keeps all forms; requests say which form they want",
    "--return-tokens-as-token-ids": "requests say return_tokens_as_token_ids",
    "--enable-force-include-usage": "requests say stream_options.include_usage",
    "--pooler-config": "--engine.pooling says how a vector is made",
    "--max-num-queued-tokens": "--max-num-queued-reqs bounds the queue",
    "--log-config-file": "--log.format and --log.level say how logs look",
    "--enable-mfu-metrics": "floating-point work is not counted; leave it out",
    "--kv-cache-metrics": "the ages of blocks are not counted; leave it out",
    "--custom-histogram-buckets": "the buckets are those of the dashboards; leave it out",
    "--skip-tokenizer-init": "a server needs its tokenizer; prompts may be token ids all the same",
    "--spec-method": "--speculative-config says all of it, as JSON",
    "--spec-model": "--speculative-config says all of it, as JSON",
    "--spec-tokens": "--speculative-config says all of it, as JSON",
    "--nnodes": "an engine is on one machine; start one server on each",
    "--node-rank": "an engine is on one machine; start one server on each",
    "--master-addr": "an engine is on one machine; start one server on each",
    "--disable-sliding-window": "windows are the model's own; lower --max-model-len instead",
}
"""Why, and what to do."""


def refuse(flag: str, values: Sequence[str]) -> None:
    """Raises if a flag requests an unsupported feature; accepts a request for the fixed behaviour."""
    allowed = AS_IT_IS.get(flag)
    if allowed is not None and set(values) <= (allowed or {"true"}):
        return
    reason = REFUSED.get(flag, "it takes no value here, and stands for what is the case anyhow; leave it out")
    raise ConfigError(f"{' '.join([flag, *values[-1:]])} is not for this server: {reason}.", param=flag)


def check_vllm(argv: Sequence[str]) -> None:
    """Where vLLM computes."""
    for token in argv:
        said = OF_VLLM.get(token.partition("=")[0].replace("_", "-"))
        if said is not None:
            raise ConfigError(f"{token} is an argument of vLLM: pass it with {said}.", param=token)
