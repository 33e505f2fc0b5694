"""Loading of a vLLM engine from a model folder."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from types import MappingProxyType

from rondo.base.errors import ConfigError
from rondo.base.storage.gguf import is_gguf
from rondo.engine.config import EngineConfig
from rondo.engine.entrypoints.output import TextSource
from rondo.engine.kv.cache import DEFAULT_CPU_BYTES
from rondo.engine.schedule.intake import max_model_len
from rondo.engine.vllm.adapters import VllmAdapters
from rondo.engine.vllm.child.process import VllmProcess
from rondo.engine.vllm.engine import VllmEngine
from rondo.engine.vllm.options import check, environment, flags, options, threads
from rondo.engine.vllm.remote import Remote
from rondo.models import parse, read_config
from rondo.models.devices import device_named
from rondo.models.files.checkpoint import check as check_checkpoint


def load_vllm(
    folder: Path,
    config: EngineConfig,
    eos_ids: tuple[int, ...] | None = None,
    tokenizer: TextSource | None = None,
    model_name: str = "",
    adapters: Mapping[str, str] = MappingProxyType({}),
) -> VllmEngine:
    """Blocks until vLLM has started. `eos_ids` default to the model's own; `adapters` are folders by name."""
    check(config)
    if is_gguf(folder):
        raise ConfigError(
            f"vLLM reads no GGUF files: run `rondo model export {folder} FOLDER`, or set backend to native.",
            param="backend",
        )
    check_checkpoint(folder)
    model = parse(read_config(folder))
    length = max_model_len(config, model.max_positions)
    ends = tuple(token for token in (eos_ids or model.eos_ids) if 0 <= token < model.vocab_size)
    served = VllmAdapters(config)
    loaded = [served.register_initial(name, path) for name, path in adapters.items()]
    engine = VllmEngine(config, model, folder, length, ends, tokenizer, model_name, served)
    on_gpu = device_named(config.device).type == "cuda"
    kv_bytes = config.kv_cache_bytes or (None if on_gpu else DEFAULT_CPU_BYTES)
    chosen = options(config, folder, length, config.device == "cuda", kv_bytes)
    arguments = [*flags(chosen), *config.vllm.args]
    if config.vllm.mode == "direct":
        from rondo.engine.vllm.direct import InProcessVllm

        engine.backend = InProcessVllm(["--model", str(folder), *arguments], threads(config), engine.fail)
        return engine
    process = VllmProcess(config.vllm.python, partial(environment, config), config.vllm.start_seconds)
    arguments += ["--enable-scale-out", "--enable-prompt-tokens-details"]
    try:
        engine.backend = Remote(process, arguments, str(folder), 0, loaded, config.vllm.restarts, engine.fail)
    except BaseException:
        process.stop()
        raise
    return engine
