"""The constants that no formula gives. `FITTED_ON` names the published rows that they were fitted on together; every
other row is held out, and `bench/planner.py` prints them all.

The formulas' shape was chosen with all rows in view, so the held-out ones say how far the constants carry, not that
nobody looked. What is not in the list of a constant was set once, by what is known of such machines.
"""

SPEED_FITTED_ON = frozenset(
    {
        "megatron 16B",
        "megatron 314B",
        "llama-3 405B, 8192 GPUs, 8k",
        "llama-3 405B, 16384 GPUs, 128k",
        "llama-3 8B fp8, FSDP",
        "llama-3 405B fp8, GB300",
        "llama-3 405B fp4, GB300",
        "llama-3 70B fp8, FSDP, GB200",
        "qwen3 30B-A3B fp8",
        "deepseek-v3 fp8, H800",
        "torchtitan 8B, 8 GPUs, compiled",
        "torchtitan 8B fp8, cp1, 32k",
        "torchtitan 8B fp8, cp8, 256k",
        "torchtitan 8B bf16, tp8, async, 2025",
        "torchtitan 70B bf16, tp8, 2025",
        "bloom 14336x72, 64 heads, dp4 tp8 pp12, mbs 4, fp16",
        "mt-530b, full recomputing",
    }
)
MEMORY_FITTED_ON = frozenset(
    {
        "bloom 14336x72, 64 heads, dp4 tp8 pp12, mbs 1, fp16",
        "bloom 14336x72, 64 heads, dp4 tp8 pp12, mbs 4, fp16",
        "torchtitan 8B, 8 GPUs, eager",
        "torchtitan 8B, 128 GPUs, eager",
        "torchtitan 8B fp8, cp1, 32k",
    }
)

# Memory.

FRAGMENTATION = 1.10
"""Memory that the allocator takes over memory asked for. Fitted."""
FIXED_BYTES = 5.0e9
"""Beside the allocator: the context, libraries, communicators and their buckets. Fitted."""

LOGITS_BYTES = {"plain": 12.0, "fused": 4.0, "chunked": 12.0}
"""A logit of the last stage: bf16, log-probabilities and their gradient in fp32, and bf16 again; a fused loss keeps
bf16 and the gradient. Fitted: how many copies are there at once."""
CHUNK_TOKENS = 2048
"""In chunks, so many tokens have logits at once."""

# Speed, fitted. Beside these, what a large product reaches of a maker's peak was fitted for four devices
# (`cluster.py`): A100, H100 at 500 W, GB200 and GB300.

PRODUCT_SHARE = 0.875
"""Of the rate of one large product: what a step's wide products reach."""
LOW_SHARE = {"fp8": 0.87, "fp4": 0.45}
"""Of that in 8 and 4 bits, where values are scaled and cast before each product."""
NARROW = 430
"""A product of this width, on one rank, reaches half of what a wide one does."""
ATTENTION_SHARE = 0.53
"""Of the rate of one large product: attention."""
RING_SHARE = 0.78
"""Of attention's rate, where it goes around a ring piece by piece."""
HIDDEN_TENSOR = 0.4
"""The part of tensor parallelism's traffic that a policy with `overlap` hides."""
EXPERT_LAYER_SECONDS = 0.0035
"""A layer with experts, forward and backward, a microbatch, whatever its size: routing, sorting, starting kernels,
waiting for the slowest rank."""

# Speed, set once.

ATTENTION_PASSES = 3.5
"""Forward passes' worth of attention in forward and backward: its scores are computed again in the latter."""
SELECTIVE_AGAIN, SELECTIVE_SPARSE_AGAIN = 0.5, 0.1
"""Of a forward pass's products: what selective checkpointing computes again, in models without experts and with."""
BETWEEN_AGAIN = {"none": 0.0, "selective": 0.3, "full": 0.4}
"""Of the reading and writing between products: what is done again."""
LAYER_SECONDS = 0.0003
"""Starting any layer's kernels, forward and backward, a microbatch."""
CAPTURED = 0.1
"""What is left of both where a graph of the kernels is replayed."""
PASSES = 5.0
"""How often a step reads or writes each byte of a layer's activations, products aside."""
BANDWIDTH_SHARE = 0.85
"""Of the memory's bandwidth."""
LINK_SHARE = 0.85
"""Of a link's rate, for collectives."""
EXPERTS_SHOWN = 0.3
"""What is left of experts' traffic where it is overlapped."""
ALWAYS_SHOWN = 0.05
"""What of data parallelism's traffic nothing hides."""
HOST_BANDWIDTH = 25e9
"""Bytes a second of a host's memory that one device's share of the optimizer has, where it computes there."""

# Serving: steps of decoding, from published ones (`serving.py`).

DECODE_SHARE = {"bf16": 0.85, "fp8": 0.75, "int8": 0.65, "int4": 0.45}
"""Of the memory's bandwidth, reading weights of that type; int8 and int4 fitted on gpt-fast's figures."""
DECODE_LAYER_SECONDS = 38e-6
"""A layer of a decoding step, whatever it reads. Fitted on Llama 3 8B alone on an H100 with vLLM."""
PREFILL_SHARE = 0.6
"""Of the rate of one large product, in prompts."""
CACHE_SHARE = 0.92
"""Of a device's memory: what a server takes."""
SERVING_FIXED_BYTES = 4.0e9
"""Beside weights and cache: the context, graphs, and one step's activations."""
REDUCE_SECONDS = 12e-6
"""One small all-reduce inside a node."""
BUSY = 0.8
"""How busy a server is to be at the load it is planned for, so that queues stay short."""
