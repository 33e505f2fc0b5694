"""Random names for requests, responses and processes."""

import secrets


def new_id(prefix: str) -> str:
    """`prefix-` and 128 random bits in hex, e.g. `chatcmpl-8f0c...`."""
    return f"{prefix}-{secrets.token_hex(16)}"
