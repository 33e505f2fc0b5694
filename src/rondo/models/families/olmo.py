"""OLMo 2: norms after each half of a layer, and over the whole of q and k."""

from rondo.models.architecture import Dense, Layer, ModelConfig
from rondo.models.families import Family
from rondo.models.families.common import Hf, activation, decoder_slots, gqa, head_dim, model_config, rope


def parse(hf: Hf) -> ModelConfig:
    bias = bool(hf.get("attention_bias", False))
    attention = gqa(hf, rope(hf, head_dim(hf)), qkv_bias=bias, out_bias=bias, qk_norm="full")
    layer = Layer(attention, Dense(hf["intermediate_size"], activation(hf)), norms="after")
    return model_config(hf, [layer] * hf["num_hidden_layers"])


FAMILY = Family(parse, decoder_slots)
