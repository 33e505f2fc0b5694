"""KV memory of one long request in a model of Gemma 3 1B's shape: most layers have a window, some see everything.

Layers, windows, heads and their size are the model's; what stands between is narrow, which changes no block. What the
request holds is read from the engine's own pools while it answers. Beside it is what it would hold if every layer kept
every block, as it must where all layers share their blocks.
"""

import torch

from common import THREADS, Report, arguments, say
from rondo.client.types import GenerateRequest, SamplingParams
from rondo.engine.config import EngineConfig
from rondo.engine.core import EngineCore
from rondo.engine.kv.cache import block_bytes
from rondo.models import Decoder, new

SHAPE = {
    "model_type": "gemma3_text",
    "architectures": ["Gemma3ForCausalLM"],
    "vocab_size": 512,
    "hidden_size": 64,
    "intermediate_size": 64,
    "num_hidden_layers": 26,
    "num_attention_heads": 4,
    "num_key_value_heads": 1,
    "head_dim": 256,
    "query_pre_attn_scalar": 256,
    "sliding_window": 512,
    "sliding_window_pattern": 6,
    "rope_theta": 1e6,
    "rope_local_base_freq": 1e4,
    "max_position_embeddings": 32768,
    "rms_norm_eps": 1e-6,
    "hidden_activation": "gelu_pytorch_tanh",
    "initializer_range": 0.02,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
ANSWER = 40


def held(model: Decoder, context: int) -> tuple[int, int, int]:
    """Most bytes that a request of so many tokens holds while it answers; if every block stayed; the least there can
    be: each layer's tokens that are seen."""
    config = EngineConfig(max_num_seqs=1, max_model_len=context, kv_dtype="bfloat16", threads=THREADS)
    core = EngineCore(model, config)
    params = SamplingParams(temperature=0, max_tokens=ANSWER, ignore_eos=True, detokenize=False)
    prompt = [3 + i * 7 % 500 for i in range(context - ANSWER)]
    (request,) = core.add(GenerateRequest("one", prompt, params))
    specs, size, dtype = model.attention_specs(), core.pool.block_size, torch.bfloat16
    of = core.runner.cache.group_of
    sizes = [
        block_bytes([spec for spec, own in zip(specs, of, strict=True) if own == group], size, dtype)
        for group in range(len(core.pool.groups))
    ]
    most = 0
    while core.has_work:
        if request.generated:
            used = (group.used for group in core.pool.groups)
            most = max(most, sum(count * each for count, each in zip(used, sizes, strict=True)))
        core.step()
    whole = core.pool.blocks_for(context) * sum(sizes)
    least = sum(block_bytes([spec], min(context, spec.window or context), dtype) for spec in specs)
    return most, whole, least


def main() -> None:
    options = arguments(__doc__ or "")
    torch.set_num_threads(THREADS)
    report = Report("window", limit={"how": "keys and values of the tokens that are seen, in no blocks"})
    report.peers["every block kept"] = {}
    model = new(SHAPE, seed=0).eval()
    for context in (1024, 4096) if options.quick else (1024, 4096, 16384):
        say(f"{context} tokens")
        figure = f"KV memory of {context} tokens, MB"
        most, whole, least = (size / 1e6 for size in held(model, context))
        report.ours[figure], report.peers["every block kept"][figure] = most, whole
        report.limit[figure] = least
        report.ratios[figure] = whole / most
        report.notes.append(f"{context} tokens: {100 * most / whole:.1f}% of all layers' blocks")
    report.show(options.json)


if __name__ == "__main__":
    main()
