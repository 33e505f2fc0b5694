"""vLLM behind the `Engine` protocol: as a process of ours that is asked over HTTP, or inside this process."""
