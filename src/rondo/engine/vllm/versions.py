"""Check of vLLM's version. Many of the interfaces in use are newer than its OpenAI routes, and not stable."""

from __future__ import annotations

import re

from rondo.base.errors import ConfigError
from rondo.base.telemetry.log import get_logger

log = get_logger("rondo.engine.vllm")

KNOWN = (0, 32)
NAME = ".".join(map(str, KNOWN))


def check_version(version: str) -> None:
    """Raises an error for an older vLLM, which lacks required interfaces, and warns about a newer one or a build
    without a version number, which are untested."""
    numbers = re.match(r"(\d+)\.(\d+)", version)
    found = (int(numbers[1]), int(numbers[2])) if numbers else None
    if found == KNOWN:
        return
    if found is not None and "dev" not in version and found < KNOWN:
        raise ConfigError(
            f"this is vLLM {version}, and Rondo works with {NAME}: install that one, or name the Python of another "
            "environment with vllm.python.",
            param="vllm.python",
        )
    log.warning(
        f"this vLLM is not one that Rondo was tested with ({NAME}): what fails may be for that reason",
        extra={"version": version},
    )
