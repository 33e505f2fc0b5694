"""Graders that requests may use: none that runs code outside the sandbox, reads files or calls other hosts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rondo.base.errors import InvalidRequest

LOCAL_FIELDS = frozenset(["base_url", "key_env", "packages", "sandbox", "allow_exec", "pass_env", "endpoint"])
"""Fields that name hosts, keys, folders or rights of the gateway's machine."""
LIMITS = frozenset(["seconds", "timeout_s"])
MOST_SECONDS = 60.0


def with_embedding_model(spec: Any, model: str | None) -> Any:
    """The grader in which each `cosine` without an embedding model uses this one."""
    if isinstance(spec, list):
        return [with_embedding_model(each, model) for each in spec]
    if not isinstance(spec, Mapping):
        return spec
    found = {name: with_embedding_model(each, model) for name, each in spec.items()}
    if model and found.get("evaluation_metric") == "cosine":
        found["model"] = found.get("model") or model
    return found


def check_grader(spec: Any, where: str = "grader") -> None:
    """Raises an InvalidRequest or a ConfigError that names the wrong field."""
    from rondo.graders.registry import grader_of

    _check(spec, where)
    grader_of(spec, where)


def _check(spec: Any, where: str) -> None:
    if isinstance(spec, list):
        for number, each in enumerate(spec):
            _check(each, f"{where}[{number}]")
        return
    if not isinstance(spec, Mapping):
        return
    if local := sorted(LOCAL_FIELDS & spec.keys()):
        field = f"{where}.{local[0]}"
        raise InvalidRequest(f"{field} cannot be set by a request: leave it out.", param=field)
    if spec.get("type") == "function":
        raise InvalidRequest(
            f"{where}.type 'function' runs code of the gateway's machine: use 'python', which has a sandbox.",
            param=f"{where}.type",
        )
    if spec.get("evaluation_metric") == "cosine" and not spec.get("model"):
        raise InvalidRequest(
            f"{where}.model is missing: cosine needs the name of an embedding model, or set "
            "gateway.jobs.embedding_model.",
            param=f"{where}.model",
        )
    for name in LIMITS & spec.keys():
        if isinstance(spec[name], int | float) and spec[name] > MOST_SECONDS:
            field = f"{where}.{name}"
            raise InvalidRequest(f"{field} is at most {MOST_SECONDS:g} in a request.", param=field)
    for name, each in spec.items():
        _check(each, f"{where}.{name}")
