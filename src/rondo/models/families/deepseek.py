"""DeepSeek-V2 and V3: latent attention, many small experts chosen by groups, shared experts."""

from rondo.base.errors import ModelError
from rondo.models.architecture import Dense, Layer, Mla, ModelConfig, Moe
from rondo.models.families import Family
from rondo.models.families.common import Hf, activation, decoder_slots, model_config, rope, yarn_mscale
from rondo.ops import RouterSpec


def parse(hf: Hf) -> ModelConfig:
    if hf.get("moe_layer_freq", 1) != 1:
        raise ModelError("config.json: moe_layer_freq other than 1 is not supported", param="moe_layer_freq")
    attention = _attention(hf)
    dense = Dense(hf["intermediate_size"], activation(hf), bool(hf.get("mlp_bias", False)))
    dense_layers = hf.get("first_k_dense_replace", 0)
    layers = [
        Layer(attention, dense if i < dense_layers else _moe(hf)) for i in range(hf["num_hidden_layers"])
    ]
    return model_config(hf, layers)


def _attention(hf: Hf) -> Mla:
    interleaved = hf["model_type"] == "deepseek_v2" or bool(hf.get("rope_interleave", True))
    head_dim = hf["qk_nope_head_dim"] + hf["qk_rope_head_dim"]
    return Mla(
        num_heads=hf["num_attention_heads"],
        q_rank=hf.get("q_lora_rank"),
        kv_rank=hf["kv_lora_rank"],
        nope_dim=hf["qk_nope_head_dim"],
        rope_dim=hf["qk_rope_head_dim"],
        value_dim=hf["v_head_dim"],
        scale=head_dim**-0.5 * _extra_scale(hf) ** 2,
        rope=rope(hf, hf["qk_rope_head_dim"], interleaved=interleaved),
        bias=bool(hf.get("attention_bias", False)),
    )


def _extra_scale(hf: Hf) -> float:
    """Factor on the softmax scale: DeepSeek sharpens the softmax where RoPE is scaled."""
    scaling = hf.get("rope_parameters") or hf.get("rope_scaling") or {}
    if (scaling.get("rope_type") or scaling.get("type") or "default") == "default":
        return 1.0
    all_dims = scaling.get("mscale_all_dim", 0)
    return yarn_mscale(scaling["factor"], all_dims) if all_dims else 1.0


def _moe(hf: Hf) -> Moe:
    v3 = hf["model_type"] == "deepseek_v3"
    grouped = v3 or hf.get("topk_method", "greedy") == "group_limited_greedy"
    router = RouterSpec(
        num_experts=hf["n_routed_experts"],
        top_k=hf["num_experts_per_tok"],
        score="sigmoid" if v3 else "softmax",
        # V2's code never normalizes and ignores its config's `norm_topk_prob`.
        normalize=v3 and bool(hf.get("norm_topk_prob", True)),
        scale=hf.get("routed_scaling_factor", 1.0),
        groups=(hf.get("n_group") or 1) if grouped else 1,
        groups_chosen=(hf.get("topk_group") or 1) if grouped else 1,
        group_score="top2" if v3 else "max",
    )
    shared = Dense(
        hf["moe_intermediate_size"] * hf["n_shared_experts"], activation(hf), bool(hf.get("mlp_bias", False))
    )
    return Moe(router, hf["moe_intermediate_size"], activation(hf), correction=v3, shared=shared)


def _further_layer(config: ModelConfig) -> tuple[str, ...]:
    """Pattern of V3's additional layer for multi-token prediction, which is not part of the decoder."""
    return (rf"^model\.layers\.{len(config.layers)}\.",)


FAMILY = Family(parse, decoder_slots, ignored=_further_layer)
