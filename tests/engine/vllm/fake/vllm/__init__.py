"""What a `Remote` sees of vLLM's server, in a process that starts in a moment, for tests to kill as they like."""
