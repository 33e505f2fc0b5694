"""Engine metrics: counters on the step's path, histograms with vLLM's buckets, and the Prometheus exposition."""
