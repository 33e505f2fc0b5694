"""An API key and its rights."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, get_args

from rondo.base.errors import ConfigError, Forbidden

Role = Literal["admin", "user", "worker"]
"""`admin`: every route. `user`: its scopes, and its own objects. `worker`: leasing prompts and finishing them."""
Scope = Literal["inference", "files", "batches", "jobs", "queue", "code"]
"""`code`: jobs that run a program of the user's on the gateway's machine, without a sandbox."""
SCOPES: tuple[Scope, ...] = tuple(scope for scope in get_args(Scope) if scope != "code")
"""Scopes of a key for which none are named."""
ServiceTier = Literal["priority", "default", "flex"]
"""Priority bands of requests, by OpenAI's names; the first is served first."""
TIERS: tuple[ServiceTier, ...] = get_args(ServiceTier)


@dataclass(frozen=True)
class Rights:
    """Rights of a key. Without `models`: each model. None: no limit. `expires` in microseconds since the epoch.
    `service_tier` is the highest that its requests may have."""

    role: Role = "user"
    scopes: tuple[Scope, ...] = SCOPES
    models: tuple[str, ...] = ()
    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    tokens_per_day: int | None = None
    expires: int | None = None
    service_tier: ServiceTier = "default"


@dataclass(frozen=True)
class Key:
    id: str
    name: str
    rights: Rights
    created: int
    revoked: int | None = None

    def may(self, scope: Scope) -> None:
        """Raises `Forbidden` unless the key has the scope."""
        rights = self.rights
        if rights.role != "admin" and (rights.role == "worker" or scope not in rights.scopes):
            raise Forbidden(
                f"The key {self.name!r} may not use {scope}: ask an admin for a key with that scope.",
                code="scope_missing",
            )

    def may_use(self, model: str) -> None:
        if self.rights.models and model not in self.rights.models:
            raise Forbidden(
                f"The key {self.name!r} may not use the model {model!r}, only {', '.join(self.rights.models)}.",
                param="model",
                code="model_not_allowed",
            )

    def usable(self, models: Iterable[str]) -> list[str]:
        """Those of the models that the key may use."""
        allowed = self.rights.models
        return [model for model in models if not allowed or model in allowed]

    def tier(self, wanted: ServiceTier) -> ServiceTier:
        """The service tier of a request for `wanted`: at most the key's own."""
        if self.rights.role == "admin":
            return wanted
        return max(wanted, self.rights.service_tier, key=TIERS.index)


def check(name: str, rights: Rights) -> None:
    if not name or len(name) > 100 or not name.isprintable():
        raise ConfigError("name is 1 to 100 characters that can be printed", param="name")
    if rights.role not in get_args(Role):
        raise ConfigError(f"role is one of {', '.join(get_args(Role))}, not {rights.role!r}", param="role")
    if rights.service_tier not in TIERS:
        raise ConfigError(
            f"service_tier is one of {', '.join(TIERS)}, not {rights.service_tier!r}", param="service_tier"
        )
    if wrong := [scope for scope in rights.scopes if scope not in get_args(Scope)]:
        raise ConfigError(f"scopes are of {', '.join(get_args(Scope))}, not {wrong[0]!r}", param="scopes")
    for limit in ("requests_per_minute", "tokens_per_minute", "tokens_per_day"):
        if (value := getattr(rights, limit)) is not None and value < 1:
            raise ConfigError(
                f"{limit} is at least 1: leave it out for no limit, revoke the key for none", param=limit
            )
    if any("," in model or not model.isprintable() or not model for model in rights.models):
        raise ConfigError("a model's name has printable characters and no comma", param="models")
