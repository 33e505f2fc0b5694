"""Sizes of published models by name."""

from rondo.plan.sizes.model import ExpertShape, Latent, ModelShape


def _llama(name: str, layers: int, hidden: int, heads: int, kv: int, wide: int, vocab: int) -> ModelShape:
    return ModelShape(name, layers, hidden, heads, kv, hidden // heads, wide, vocab, context=131072)


def gpt(name: str, layers: int, hidden: int, heads: int, vocab: int, tied: bool = True) -> ModelShape:
    """GPT's block: a feed-forward layer of two matrices with four times the width, and one KV head per query head."""
    return ModelShape(
        name, layers, hidden, heads, heads, hidden // heads, 4 * hidden, vocab, gated=False, tied=tied
    )


def _qwen3(name: str, layers: int, hidden: int, heads: int, kv: int, wide: int, tied: bool) -> ModelShape:
    return ModelShape(name, layers, hidden, heads, kv, 128, wide, 151936, tied=tied, context=40960)


_DEEPSEEK_LATENT = Latent(kv_rank=512, nope_dim=128, rope_dim=64, value_dim=128, q_rank=1536)

_ALL = (
    ModelShape("smollm2-135m", 30, 576, 9, 3, 64, 1536, 49152, tied=True, context=8192),
    ModelShape("llama-3.2-1b", 16, 2048, 32, 8, 64, 8192, 128256, tied=True, context=131072),
    _llama("llama-2-7b", 32, 4096, 32, 32, 11008, 32000),
    _llama("llama-3-8b", 32, 4096, 32, 8, 14336, 128256),
    _llama("llama-3-70b", 80, 8192, 64, 8, 28672, 128256),
    _llama("llama-3-405b", 126, 16384, 128, 8, 53248, 128256),
    _qwen3("qwen3-0.6b", 28, 1024, 16, 8, 3072, True),
    _qwen3("qwen3-1.7b", 28, 2048, 16, 8, 6144, True),
    _qwen3("qwen3-4b", 36, 2560, 32, 8, 9728, True),
    _qwen3("qwen3-8b", 36, 4096, 32, 8, 12288, False),
    _qwen3("qwen3-14b", 40, 5120, 40, 8, 17408, False),
    _qwen3("qwen3-32b", 64, 5120, 64, 8, 25600, False),
    ModelShape(
        "qwen3-30b-a3b", 48, 2048, 32, 4, 128, 6144, 151936, experts=ExpertShape(128, 8, 768), context=40960
    ),
    ModelShape(
        "qwen3-235b-a22b",
        94,
        4096,
        64,
        4,
        128,
        12288,
        151936,
        experts=ExpertShape(128, 8, 1536),
        context=40960,
    ),
    ModelShape(
        "mixtral-8x7b", 32, 4096, 32, 8, 128, 14336, 32000, experts=ExpertShape(8, 2, 14336), context=32768
    ),
    ModelShape(
        "mixtral-8x22b", 56, 6144, 48, 8, 128, 16384, 32768, experts=ExpertShape(8, 2, 16384), context=65536
    ),
    ModelShape(
        "deepseek-v3",
        61,
        7168,
        128,
        128,
        192,
        18432,
        129280,
        experts=ExpertShape(256, 8, 2048, shared=2048),
        dense_layers=3,
        latent=_DEEPSEEK_LATENT,
        predict_layers=1,
        context=163840,
    ),
    ModelShape(
        "kimi-k2",
        61,
        7168,
        64,
        64,
        192,
        18432,
        163840,
        experts=ExpertShape(384, 8, 2048, shared=2048),
        dense_layers=1,
        latent=_DEEPSEEK_LATENT,
        context=131072,
    ),
    gpt("gpt-3-175b", 96, 12288, 96, 51200),
    gpt("mt-530b", 105, 20480, 128, 51200),
    gpt("bloom-176b", 70, 14336, 112, 250880),
)
SHAPES = {shape.name: shape for shape in _ALL}
