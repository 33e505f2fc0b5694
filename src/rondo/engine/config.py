"""The engine's part of the config tree. Torch-free."""

from typing import Literal

from pydantic import Field

from rondo.base.settings.config import Section


class VllmConfig(Section):
    mode: Literal["http", "direct"] = Field(
        "http",
        description="http: a vLLM child process behind a Unix socket; direct: vLLM inside this process.",
    )
    runner: Literal["generate", "pooling"] = Field(
        "generate",
        description="generate: text generation; pooling: embeddings and scores.",
    )
    python: str | None = Field(
        None, description="Python interpreter that has vLLM, for mode http; default: this one."
    )
    args: tuple[str, ...] = Field((), description="Further arguments of `vllm serve`.")
    adapters: bool = Field(False, description="Serve LoRA adapters; slows down vLLM's steps.")
    start_seconds: float = Field(900.0, gt=0, description="Start-up timeout of vLLM.")
    restarts: int = Field(
        3,
        ge=0,
        description="Restarts of vLLM within ten minutes before the server ends.",
    )


class EngineConfig(Section):
    backend: Literal["native", "vllm"] = Field(
        "native", description="Inference engine: native (Rondo's) or vllm."
    )
    vllm: VllmConfig = Field(VllmConfig(), description="settings of backend vllm")
    max_model_len: int | None = Field(
        None, ge=1, description="Maximum context length in tokens (prompt plus answer); default: the model's."
    )
    max_num_seqs: int = Field(64, ge=1, description="Maximum number of requests in a batch.")
    max_step_tokens: int = Field(
        2048, ge=1, description="Token budget of a step; longer prompts are prefilled in chunks."
    )
    max_queued: int = Field(
        4096, ge=1, description="Maximum number of waiting requests; further ones get status 503."
    )
    block_size: int = Field(16, ge=1, description="Tokens per KV cache block.")
    num_blocks: int | None = Field(
        None, ge=1, description="KV cache size in blocks; overrides kv_cache_bytes."
    )
    kv_cache_bytes: int | None = Field(
        None, ge=1, description="KV cache size in bytes; default: enough for max_num_seqs requests."
    )
    batching: Literal["continuous", "dynamic", "static"] = Field(
        "continuous",
        description="continuous: requests join at every step. For comparison: dynamic admits waiting requests after "
        "the last batch has ended; static waits for max_num_seqs requests while more arrive.",
    )
    swap_bytes: int = Field(
        0,
        ge=0,
        description="Host memory for the KV cache of preempted requests; 0: they are recomputed.",
    )
    swap_bytes_per_second: float | None = Field(
        None, gt=0, description="Swap bandwidth; measured at start by default."
    )
    recompute_tokens_per_second: float | None = Field(
        None, gt=0, description="Prefill speed; measured at start by default."
    )
    prefix_cache: bool = Field(True, description="Prefix caching: share KV blocks of equal prompt prefixes.")
    pooling: Literal["last", "mean"] = Field(
        "last",
        description="Embedding pooling: output at the last token, or mean over all tokens.",
    )
    cuda_graphs: bool = Field(False, description="On a GPU: capture and replay decode steps as CUDA graphs.")
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = Field(
        "auto", description="Type of the weights."
    )
    kv_dtype: Literal["auto", "float32", "bfloat16", "float16", "int8", "fp8"] = Field(
        "auto", description="Type of the KV cache; auto: the weights' type."
    )
    device: str = Field(
        "auto",
        examples=["auto", "cpu", "cuda"],
        description="cpu, cuda, cuda:1, ...; auto takes a GPU if there is one.",
    )
    tensor_parallel: int = Field(
        1,
        ge=1,
        le=64,
        description="Tensor-parallel processes: one per GPU, or shares of one CPU.",
    )
    threads: int | None = Field(None, ge=1, le=4096, description="CPU threads of a step; default: all cores.")
    speculation: Literal["off", "ngram", "draft"] = Field(
        "off", description="Speculative decoding with n-grams of the request, or with draft_model."
    )
    speculation_tokens: int = Field(4, ge=1, le=64, description="Maximum number of draft tokens per step.")
    speculation_adaptive: bool = Field(
        True, description="Pause speculative decoding while it costs more time than it saves."
    )
    ngram_min: int = Field(2, ge=1, description="Minimum n-gram length.")
    ngram_max: int = Field(5, ge=1, description="Maximum n-gram length.")
    draft_model: str | None = Field(
        None, description="Draft model with the same vocabulary, a name or a folder."
    )
    deterministic: bool = Field(
        False,
        description="Deterministic mode: a request's log-probabilities depend on nothing but itself and equal the "
        "learner's bit for bit; refuses to start where that cannot hold.",
    )
    autotune: bool = Field(
        True,
        description="Autotune matrix products at the first start, for at most 2 s; results do not change.",
    )
    seed: int = Field(0, description="Seed from which requests without a seed derive theirs.")
    adapters_dir: str | None = Field(
        None, description="Folder of adapter folders; each is served under its name and loaded on first use."
    )
    max_loaded_adapters: int = Field(
        64, ge=1, description="Maximum number of loaded adapters; the least recently used is evicted."
    )
    max_adapter_rank: int = Field(64, ge=1, description="Maximum rank of an adapter.")
