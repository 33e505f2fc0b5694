"""Records from files: formats (JSON Lines, text, Parquet, compressed or not), mixtures of sources, and the text of a
record that pretraining learns from. A record is `{"text"}`, `{"messages"}` or `{"prompt", "completion"}`.
"""
