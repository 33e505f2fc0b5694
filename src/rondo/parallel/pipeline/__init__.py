"""Pipeline parallelism: stages of a decoder, PyTorch's schedules, and the tied embedding of the first and last
stage."""
