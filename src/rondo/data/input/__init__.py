"""Records from files: formats (JSON Lines, text, Parquet, compressed or not), mixtures of sources, and the pretraining
text of a record. A record is `{"text"}`, `{"messages"}` or `{"prompt", "completion"}`."""
