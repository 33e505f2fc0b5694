"""The engine's part of the config tree. Torch-free."""

from typing import Literal

from pydantic import Field

from rondo.base.config import Section


class VllmConfig(Section):
    mode: Literal["http", "direct"] = Field(
        "http", description="http: a vLLM process of ours, behind a socket file; direct: inside this process."
    )
    runner: Literal["generate", "pooling"] = Field(
        "generate",
        description="What vLLM gives: answers (generate), or vectors and scores of texts (pooling).",
    )
    python: str | None = Field(
        None, description="The Python that vLLM is installed for, with http; this one by default."
    )
    args: tuple[str, ...] = Field((), description="Further arguments, as `vllm serve` takes them.")
    adapters: bool = Field(False, description="Serve LoRA adapters; vLLM's steps take longer then.")
    start_seconds: float = Field(900.0, gt=0, description="How long vLLM may take to start.")
    restarts: int = Field(
        3,
        ge=0,
        description="How often in ten minutes a vLLM that ended is started again; then the server ends.",
    )


class EngineConfig(Section):
    backend: Literal["native", "vllm"] = Field(
        "native", description="What computes: Rondo's own engine, or vLLM."
    )
    vllm: VllmConfig = Field(VllmConfig(), description="where backend is vllm")
    max_model_len: int | None = Field(
        None, ge=1, description="Longest prompt plus answer; the model's own by default."
    )
    max_num_seqs: int = Field(64, ge=1, description="Most requests computed together.")
    max_step_tokens: int = Field(
        2048, ge=1, description="Most tokens computed in one step; longer prompts are cut."
    )
    max_queued: int = Field(4096, ge=1, description="Most requests that may wait; the next one is refused.")
    block_size: int = Field(16, ge=1, description="Tokens in one block of the KV cache.")
    num_blocks: int | None = Field(
        None, ge=1, description="Size of the KV cache in blocks; overrides kv_cache_bytes."
    )
    kv_cache_bytes: int | None = Field(
        None, ge=1, description="Size of the KV cache; what max_num_seqs need by default."
    )
    batching: Literal["continuous", "dynamic", "static"] = Field(
        "continuous",
        description="When requests join. continuous: at every step. For comparison: dynamic takes what waits when the "
        "last batch has ended; static, as long as more come, waits for max_num_seqs of them.",
    )
    swap_bytes: int = Field(
        0,
        ge=0,
        description="Host memory that preempted requests may keep their KV in; 0: they compute it again.",
    )
    swap_bytes_per_second: float | None = Field(
        None, gt=0, description="How fast KV moves to host memory and back; measured at the start by default."
    )
    recompute_tokens_per_second: float | None = Field(
        None, gt=0, description="How fast prompts are computed; measured at the start by default."
    )
    prefix_cache: bool = Field(True, description="Keep and share the KV blocks of prompts that begin alike.")
    pooling: Literal["last", "mean"] = Field(
        "last",
        description="What an embedding is: the output at the prompt's last token, or the mean over all.",
    )
    cuda_graphs: bool = Field(
        False, description="On a GPU: record the model's decode steps once a size, and replay them."
    )
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = Field("auto", description="Of the weights.")
    kv_dtype: Literal["auto", "float32", "bfloat16", "float16", "int8", "fp8"] = Field(
        "auto", description="Of the KV cache; the weights' by default."
    )
    device: str = Field("auto", description="cpu, cuda, cuda:1, ...; auto takes a GPU if there is one.")
    tensor_parallel: int = Field(
        1,
        ge=1,
        le=64,
        description="Processes, each with a slice of the model: a GPU each, or parts of one CPU.",
    )
    threads: int | None = Field(
        None, ge=1, le=4096, description="CPU threads of one step; all cores by default."
    )
    speculation: Literal["off", "ngram", "draft"] = Field(
        "off", description="Guess next tokens: from the request's own text, or with draft_model."
    )
    speculation_tokens: int = Field(4, ge=1, le=64, description="Most tokens guessed at once.")
    speculation_adaptive: bool = Field(True, description="Stop guessing for a while where it costs time.")
    ngram_min: int = Field(2, ge=1, description="Fewest last tokens that must have occurred before.")
    ngram_max: int = Field(5, ge=1, description="Most last tokens that are compared.")
    draft_model: str | None = Field(
        None, description="A small model with the same vocabulary: its name or folder."
    )
    deterministic: bool = Field(
        False,
        description="Start only where a request's bits depend on nothing but itself, and are the learner's.",
    )
    autotune: bool = Field(
        True,
        description="Try at the first start, for 2 s at most, how products are best cut here; no result changes.",
    )
    seed: int = Field(0, description="Where requests without a seed of their own get theirs from.")
    adapters_dir: str | None = Field(
        None, description="A folder of adapters' folders: each is served under its name, loaded at first use."
    )
    max_loaded_adapters: int = Field(
        64, ge=1, description="Most adapters loaded at once; the least recently used goes first."
    )
    max_adapter_rank: int = Field(64, ge=1, description="The highest rank an adapter may have.")
