"""Model definitions: one implementation of each architecture for training and serving, with Hugging Face import and
export.

Inputs are a Hugging Face folder (`config.json`, safetensors), a GGUF file or a config alone. Output is a `Decoder`, a
plain `nn.Module` over flat rows of tokens, whose attention is supplied by the caller: packed documents when training, a
paged KV cache when serving. A token therefore has the same log-probability in both.

    architecture.py  `ModelConfig`: sizes and variants that the families share
    decoder.py       the decoder, built from `parts.py`
    families/        one file a family (Llama, Qwen, Gemma, DeepSeek, ...): config fields and tensor names
    files/           safetensors, headers, name mapping, loading and saving checkpoints, GGUF
    quantized/       quantized checkpoints (GPTQ, AWQ, compressed-tensors) and quantization
    adapters/        LoRA in PEFT's format, Tokenformer
    heads/           reward-model and value heads, additive hooks for many adapters in one batch
    store.py         models of this machine, under `RONDO_HOME/models`

The package contains no scheduler, optimizer or device policy. Read `architecture.py`, then `decoder.py`.
"""

from typing import TYPE_CHECKING

from rondo.base.lazy import lazy

if TYPE_CHECKING:
    from rondo.models.architecture import ModelConfig
    from rondo.models.attend import Attend, Packed
    from rondo.models.decoder import Decoder
    from rondo.models.families import FAMILIES, parse
    from rondo.models.files.checkpoint import build, load, save, save_into
    from rondo.models.files.headers import read_config
    from rondo.models.fresh import new

__all__ = [
    "FAMILIES",
    "Attend",
    "Decoder",
    "ModelConfig",
    "Packed",
    "build",
    "load",
    "new",
    "parse",
    "read_config",
    "save",
    "save_into",
]

__getattr__ = lazy(
    __name__,
    {
        "FAMILIES": ".families",
        "Attend": ".attend",
        "Decoder": ".decoder",
        "ModelConfig": ".architecture",
        "Packed": ".attend",
        "build": ".files.checkpoint",
        "load": ".files.checkpoint",
        "new": ".fresh",
        "parse": ".families",
        "read_config": ".files.headers",
        "save": ".files.checkpoint",
        "save_into": ".files.checkpoint",
    },
)
"""Naming and listing models must not wait for torch."""
