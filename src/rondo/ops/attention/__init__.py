"""Attention: references for packed documents, paged KV caches and chunks, and FlashAttention on CUDA.

`packed.py` is causal attention over a flat row of documents (training), `paged.py` is one new token a request over
pages (decode), `chunks.py` several tokens a request (prefill), and `parts.py` attention to a part of the context,
merged by log-sum-exp. `pages.py` describes the page layout.
"""
