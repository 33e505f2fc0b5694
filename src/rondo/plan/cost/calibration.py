"""Empirical constants of the cost model. They were fitted jointly on the published runs marked `fitted` in
`tests/support/published_runs.toml`; every other run is held out, and `bench/planner.py` prints them all.

The form of the formulas was chosen with all runs in view. The held-out runs therefore validate the constants, not the
formulas. Constants not marked as fitted were set once, from typical values of such machines.
"""

# Memory.

FRAGMENTATION = 1.10
"""Ratio of reserved to allocated memory of the allocator. Fitted."""
FIXED_BYTES = 5.0e9
"""Memory outside of the allocator: CUDA context, libraries, communicators and their buckets. Fitted."""

LOGITS_BYTES = {"plain": 12.0, "fused": 4.0, "chunked": 12.0}
"""Bytes per logit of the last stage: bf16, log-probabilities and their gradient in fp32, and bf16 again; a fused loss
stores only bf16 and the gradient. Fitted: the number of simultaneous copies.
"""
CHUNK_TOKENS = 2048
"""Number of tokens whose logits exist at the same time with a chunked loss."""

# Speed, fitted. In addition, the share of the peak that a large matrix product reaches was fitted for four devices
# (`cluster.py`): A100, H100 at 500 W, GB200 and GB300.

PRODUCT_SHARE = 0.875
"""Rate of a step's wide products, relative to one large product."""
LOW_SHARE = {"fp8": 0.87, "fp4": 0.45}
"""Rate of 8-bit and 4-bit products relative to that, because values are scaled and cast before each product."""
NARROW = 430
"""Width per rank at which a product reaches half of the rate of a wide product."""
ATTENTION_SHARE = 0.53
"""Rate of attention, relative to one large product."""
RING_SHARE = 0.78
"""Rate of ring attention, relative to attention."""
HIDDEN_TENSOR = 0.4
"""Share of tensor parallelism's traffic that a policy with `overlap` hides."""
EXPERT_LAYER_SECONDS = 0.0035
"""Fixed time of a layer with experts, forward and backward, per microbatch: routing, sorting, kernel launches, and
the wait for the slowest rank.
"""

# Speed, set once.

ATTENTION_PASSES = 3.5
"""Cost of attention in forward and backward, in forward passes: the backward pass recomputes the scores."""
SELECTIVE_AGAIN, SELECTIVE_SPARSE_AGAIN = 0.5, 0.1
"""Recomputed share of a forward pass's products with selective checkpointing, in models without and with experts."""
BETWEEN_AGAIN = {"none": 0.0, "selective": 0.3, "full": 0.4}
"""Recomputed share of the memory traffic between products."""
LAYER_SECONDS = 0.0003
"""Kernel launches of a layer, forward and backward, per microbatch."""
CAPTURED = 0.1
"""Remaining share of both fixed times with CUDA graphs."""
PASSES = 5.0
"""Number of reads or writes per step of each byte of a layer's activations, except by products."""
BANDWIDTH_SHARE = 0.85
"""Achieved share of the memory bandwidth."""
LINK_SHARE = 0.85
"""Achieved share of a link's rate in collectives."""
EXPERTS_SHOWN = 0.3
"""Exposed share of the experts' traffic with overlap."""
ALWAYS_SHOWN = 0.05
"""Share of data parallelism's traffic that is always exposed."""
HOST_BANDWIDTH = 25e9
"""Bytes per second of host memory for one device's share of the optimizer with offload."""

# Serving: decode steps, from published figures (`serving.py`).

DECODE_SHARE = {"bf16": 0.85, "fp8": 0.75, "int8": 0.65, "int4": 0.45}
"""Achieved share of the memory bandwidth for weights of that type; int8 and int4 fitted on gpt-fast's figures."""
DECODE_LAYER_SECONDS = 38e-6
"""Fixed time of a layer in a decode step. Fitted on a single figure: Llama 3 8B on an H100 with vLLM."""
PREFILL_SHARE = 0.6
"""Rate of prefill, relative to one large product."""
CACHE_SHARE = 0.92
"""Share of a device's memory that a server uses."""
SERVING_FIXED_BYTES = 4.0e9
"""Memory beside weights and cache: CUDA context, graphs, and activations of one step."""
REDUCE_SECONDS = 12e-6
"""Time of one small all-reduce within a node."""
BUSY = 0.8
"""Planned utilization of a server, below 1 so that queues stay short."""
