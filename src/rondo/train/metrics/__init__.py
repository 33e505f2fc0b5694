"""Training metrics: step times, throughput, MFU, memory, stragglers and non-finite steps, and the services they are
sent to.

`meter.py` computes the figures of a step; `sinks.py` forwards them to TensorBoard, W&B, Prometheus, the status of a
TrainJob and the profiler.
"""
