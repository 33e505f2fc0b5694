"""Translation of Rondo's settings to vLLM's, and the settings that vLLM lacks."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path

from rondo.base.errors import ConfigError
from rondo.client.limits import MAX_LOGPROBS
from rondo.engine.config import EngineConfig
from rondo.engine.vllm.child.plugins import ENTRY_POINTS
from rondo.engine.vllm.folder import RunFolder

LORA_RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)
MOST_LORAS_TOGETHER = 8
BACKEND = "rondo"
"""Name under which our plug-in registers its loader of weights from a folder."""

OWN = "is of Rondo's own engine: leave it out, or set backend to native"
REFUSED = {
    "batching": OWN,
    "swap_bytes": f"{OWN} (vLLM has --kv-offloading-size, for vllm.args)",
    "swap_bytes_per_second": OWN,
    "recompute_tokens_per_second": OWN,
    "deterministic": OWN,
    "autotune": OWN,
    "speculation": f"{OWN} (vLLM has --speculative-config, for vllm.args)",
    "draft_model": OWN,
    "adapters_dir": "is of Rondo's own engine: load adapters with /v1/load_lora_adapter",
}
USUAL = {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "VLLM_CPU_NUM_OF_RESERVED_CPU": "0"}
"""Default environment variables of vLLM: no network access, and all cores."""
KV_TYPES = {"auto": "auto", "fp8": "fp8", "bfloat16": "bfloat16", "float16": "float16"}


def check(config: EngineConfig) -> None:
    """Raises an error, with the name of the field, for settings that vLLM does not support."""
    for name, reason in REFUSED.items():
        if getattr(config, name) != EngineConfig.model_fields[name].default:
            raise ConfigError(f"{name} {reason}.", param=name)
    if config.pooling != EngineConfig.model_fields["pooling"].default and config.vllm.runner != "pooling":
        raise ConfigError(
            "pooling applies to embeddings, and this vLLM generates text: set vllm.runner to pooling.",
            param="pooling",
        )
    if config.kv_dtype not in KV_TYPES:
        raise ConfigError(
            f"vLLM does not support a KV cache in {config.kv_dtype}: kv_dtype is one of {', '.join(KV_TYPES)}.",
            param="kv_dtype",
        )
    if config.max_adapter_rank > LORA_RANKS[-1]:
        raise ConfigError(f"max_adapter_rank is at most {LORA_RANKS[-1]} in vLLM.", param="max_adapter_rank")
    kind, _, index = config.device.partition(":")
    if kind not in ("auto", "cpu", "cuda") or index:
        raise ConfigError(
            f"device is {config.device}, but vLLM takes the devices it was built for: set it to auto, cpu or cuda, and "
            "choose among GPUs with CUDA_VISIBLE_DEVICES.",
            param="device",
        )


def options(
    config: EngineConfig, tokenizer: Path, max_model_len: int, on_gpu: bool, kv_bytes: int | None
) -> dict[str, object]:
    """vLLM's engine arguments under its own names, except for the model folder. A tuple is a JSON value."""
    chosen: dict[str, object] = {
        "tokenizer": str(tokenizer),
        "max_model_len": max_model_len,
        "max_num_seqs": config.max_num_seqs,
        "max_num_batched_tokens": max(config.max_step_tokens, config.max_num_seqs),
        "max_logprobs": MAX_LOGPROBS + 1,
        "dtype": config.dtype,
        "kv_cache_dtype": KV_TYPES[config.kv_dtype],
        "enable_prefix_caching": config.prefix_cache,
        "tensor_parallel_size": config.tensor_parallel,
        "seed": config.seed,
        "generation_config": "vllm",
        "scheduling_policy": "priority",
        "weight_transfer_config": {"backend": BACKEND},
        "enable_sleep_mode": on_gpu,
    }
    if config.vllm.runner == "pooling":
        chosen |= _pooling(config, max_model_len)
    if config.block_size != EngineConfig.model_fields["block_size"].default:
        chosen["block_size"] = config.block_size
    if config.num_blocks is not None:
        chosen["num_gpu_blocks_override"] = config.num_blocks
    if kv_bytes is not None:
        chosen["kv_cache_memory_bytes"] = kv_bytes
    if config.vllm.adapters:
        chosen |= {
            "enable_lora": True,
            "max_lora_rank": next(rank for rank in LORA_RANKS if rank >= config.max_adapter_rank),
            "max_loras": min(MOST_LORAS_TOGETHER, config.max_loaded_adapters, config.max_num_seqs),
            "max_cpu_loras": config.max_loaded_adapters,
        }
    return chosen


def _pooling(config: EngineConfig, max_model_len: int) -> dict[str, object]:
    """Engine arguments for pooling. Mean pooling needs the whole prompt in one step."""
    chosen: dict[str, object] = {
        "runner": "pooling",
        "convert": "embed",
        "pooler_config": {"pooling_type": config.pooling.upper()},
    }
    if config.pooling == "mean":
        chosen["max_num_batched_tokens"] = max(config.max_step_tokens, config.max_num_seqs, max_model_len)
    return chosen


def flags(chosen: Mapping[str, object]) -> list[str]:
    """The options as arguments of `vllm serve`."""
    said: list[str] = []
    for name, value in chosen.items():
        flag = "--" + name.replace("_", "-")
        if isinstance(value, bool):
            said.append(flag if value else f"--no-{flag[2:]}")
        else:
            said += [flag, json.dumps(value) if isinstance(value, dict) else str(value)]
    return said


def environment(config: EngineConfig, folder: RunFolder) -> dict[str, str]:
    """Environment of vLLM's process: ours without our Python path, with the variables that our operations need, and
    without network access."""
    given = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTHONHOME")}
    wanted = {
        "PYTHONPATH": str(folder.plugins),
        "VLLM_SERVER_DEV_MODE": "1",
        "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "1",
    }
    return USUAL | given | wanted | plugins_too(given) | folder.variables() | threads(config)


def plugins_too(given: Mapping[str, str]) -> dict[str, str]:
    """Adds our plug-ins to the user's selection of vLLM plug-ins, if there is one."""
    chosen = given.get("VLLM_PLUGINS")
    if chosen is None:
        return {}
    return {"VLLM_PLUGINS": ",".join([*filter(None, chosen.split(",")), *ENTRY_POINTS])}


def threads(config: EngineConfig) -> dict[str, str]:
    """vLLM's environment variables for the number of CPU threads."""
    if config.threads is None:
        return {}
    return {"OMP_NUM_THREADS": str(config.threads), "VLLM_CPU_OMP_THREADS_BIND": "nobind"}
