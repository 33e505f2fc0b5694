"""`rondo model new`: a model of a given shape with random weights."""

import argparse
import json
import re
from pathlib import Path
from typing import Any

from rondo.base.errors import ConfigError
from rondo.base.storage.paths import path_of
from rondo.base.units import human_bytes, human_count
from rondo.cli.options.arguments import VerbParser, positive_count
from rondo.cli.view.progress import byte_progress

PRESETS: dict[str, dict[str, Any]] = {
    "tiny": {
        "model_type": "qwen3",
        "hidden_size": 128,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 32,
        "intermediate_size": 384,
        "vocab_size": 512,
        "max_position_embeddings": 1024,
        "tie_word_embeddings": True,
    },
    "0.6b": {
        "model_type": "qwen3",
        "hidden_size": 1024,
        "num_hidden_layers": 28,
        "num_attention_heads": 16,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "intermediate_size": 3072,
        "vocab_size": 151936,
        "max_position_embeddings": 40960,
        "rope_theta": 1000000,
        "tie_word_embeddings": True,
        "bos_token_id": 151643,
        "eos_token_id": 151645,
        "dtype": "bfloat16",
    },
}

SHAPE_FLAGS = {
    "--hidden-size": "hidden_size",
    "--layers": "num_hidden_layers",
    "--heads": "num_attention_heads",
    "--kv-heads": "num_key_value_heads",
    "--head-dim": "head_dim",
    "--intermediate-size": "intermediate_size",
    "--vocab-size": "vocab_size",
    "--context": "max_position_embeddings",
}

COMMON = {"hidden_act": "silu", "rms_norm_eps": 1e-6, "initializer_range": 0.02, "tie_word_embeddings": False}

ARCHITECTURES = {
    "llama": "LlamaForCausalLM",
    "mistral": "MistralForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
    "qwen3_moe": "Qwen3MoeForCausalLM",
    "smollm3": "SmolLM3ForCausalLM",
    "gemma2": "Gemma2ForCausalLM",
    "gemma3_text": "Gemma3ForCausalLM",
    "phi3": "Phi3ForCausalLM",
    "olmo2": "Olmo2ForCausalLM",
    "mixtral": "MixtralForCausalLM",
    "gpt_oss": "GptOssForCausalLM",
    "deepseek_v2": "DeepseekV2ForCausalLM",
    "deepseek_v3": "DeepseekV3ForCausalLM",
}
"""The class names that transformers and vLLM look for in config.json."""


def run(argv: list[str]) -> int:
    arguments = _parser().parse_args(argv)
    config = hf_config(arguments)

    import torch

    from rondo.models import new
    from rondo.models.store import create_model, place

    path = place(arguments.name)
    if path.exists() and not arguments.replace:
        raise ConfigError(
            f"There is a model {arguments.name} already. Choose another name, or add --replace."
        )
    try:
        model = new(config, seed=arguments.seed, dtype=getattr(torch, config["dtype"]))
    except (MemoryError, RuntimeError) as error:  # torch's allocator raises RuntimeError
        asked = re.search(r"allocate (\d+) bytes", str(error))
        reason = f"one tensor alone needs {human_bytes(int(asked[1]))}" if asked else "out of memory"
        raise ConfigError(
            f"A model of this shape cannot be made on this machine: {reason}. Make it smaller."
        ) from error
    with byte_progress(f"making {arguments.name}") as report:
        create_model(arguments.name, model, arguments.tokenizer, replace=arguments.replace, report=report)
    count = sum(parameter.numel() for parameter in model.parameters())
    print(f"{arguments.name} ({config['model_type']}, {human_count(count)} parameters) is in {path}")
    return 0


def hf_config(arguments: argparse.Namespace) -> dict[str, Any]:
    """The `config.json` that the flags describe: preset or file, then the tokenizer, then single flags."""
    if not (arguments.preset or arguments.hf_config or arguments.family):
        raise ConfigError(
            "Say what to make: --preset tiny, --family qwen3 with its sizes, or --hf-config FILE."
        )
    config: dict[str, Any] = dict(COMMON)
    if arguments.preset:
        config |= PRESETS[arguments.preset]
    if arguments.hf_config:
        config |= _read(path_of(arguments.hf_config, "--hf-config"))
    if arguments.family:
        config["model_type"] = arguments.family
    if arguments.tokenizer:
        tokens = _from_tokenizer(arguments.tokenizer)
        config |= tokens
    config |= {key: value for key in SHAPE_FLAGS.values() if (value := getattr(arguments, key)) is not None}
    if arguments.tie is not None:
        config["tie_word_embeddings"] = arguments.tie
    for setting in arguments.set:
        key, equals, text = setting.partition("=")
        if not equals:
            raise ConfigError(f"--set {setting}: write --set key=value.")
        config[key] = _value(text)
    config["dtype"] = arguments.dtype or config.get("dtype") or config.get("torch_dtype") or "float32"
    for key in SHAPE_FLAGS.values():
        if isinstance(config.get(key), int) and config[key] > LARGEST:
            raise ConfigError(f"{key} is {config[key]}; {LARGEST} is the most that can be made.")
    spread = config["initializer_range"]
    if isinstance(spread, bool) or not isinstance(spread, int | float) or not 0 < spread < float("inf"):
        raise ConfigError(f"initializer_range is {spread!r}; give a number above 0.")
    if config["dtype"] not in DTYPES:
        raise ConfigError(f"dtype {config['dtype']!r} cannot be made. Choose --dtype {', '.join(DTYPES)}.")
    if name := ARCHITECTURES.get(str(config.get("model_type"))):
        config.setdefault("architectures", [name])
    if arguments.tokenizer and config["vocab_size"] < tokens["vocab_size"]:
        raise ConfigError(f"The tokenizer needs --vocab-size {tokens['vocab_size']} or more.")
    return config


LARGEST = 2**31 - 1
DTYPES = ("float32", "bfloat16", "float16")


def _parser() -> VerbParser:
    parser = VerbParser("rondo model new", "Make a model with random weights, in RONDO_HOME/models/NAME.")
    parser.add_argument("name", metavar="NAME", help="name of the model")
    parser.add_argument(
        "--preset", choices=sorted(PRESETS), help="a whole shape; other flags change parts of it"
    )
    parser.add_argument("--hf-config", metavar="FILE", help="a config.json to begin with")
    parser.add_argument("--family", help="the model_type, such as qwen3 or llama")
    for flag, key in SHAPE_FLAGS.items():
        parser.add_argument(flag, dest=key, type=positive_count, metavar="N", help=f"config.json's {key}")
    parser.add_argument("--tie", action=argparse.BooleanOptionalAction, help="tie the head to the embedding")
    parser.add_argument(
        "--set", action="append", default=[], metavar="KEY=JSON", help="any other key of config.json"
    )
    parser.add_argument(
        "--tokenizer", metavar="DIR", help="a folder to copy a tokenizer and its chat template from"
    )
    parser.add_argument("--dtype", choices=DTYPES, help="default: the preset's, else float32")
    parser.add_argument("--seed", type=_seed, default=0, metavar="N", help="of the random weights")
    parser.add_argument("--replace", action="store_true", help="put it in the place of a model of that name")
    return parser


def _seed(text: str) -> int:
    if not text.isascii() or not text.isdecimal() or len(text) > 19 or int(text) >= 2**63:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 0 to 2**63 - 1")
    return int(text)


def _read(file: Path) -> dict[str, Any]:
    try:
        config = json.loads(file.read_text("utf-8"))
    except OSError as error:
        raise ConfigError(f"Cannot read {file}: {error.strerror}.") from None
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{file} is not valid JSON: {error}.") from None
    if not isinstance(config, dict):
        raise ConfigError(f"{file} is not a JSON object.")
    return config


def _from_tokenizer(folder: str) -> dict[str, Any]:
    from rondo.text.tokenizer import Tokenizer

    tokenizer = Tokenizer.load(path_of(folder, "--tokenizer"))
    eos = list(tokenizer.eos_ids)
    found = {
        "vocab_size": tokenizer.vocab_size,
        "eos_token_id": eos[0] if len(eos) == 1 else eos or None,
        "bos_token_id": tokenizer.bos_id,
        "pad_token_id": tokenizer.pad_id,
    }
    return {key: value for key, value in found.items() if value is not None}


def _value(text: str) -> object:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text
