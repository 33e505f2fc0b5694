"""Durable state and the work queue. It imports `base`, `client` and `plan` alone: other rooms run as processes."""
