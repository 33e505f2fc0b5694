"""Key and rights of a request to the gateway's own routes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Annotated, cast, get_args

from fastapi import APIRouter, Request, Security
from fastapi.routing import APIRoute
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer, SecurityScopes

from rondo.control.key import Key, Scope
from rondo.gateway.auth import PROXIED, Authenticator, check_admin, check_worker

ADMIN = "admin"
ANY = "any"
"""Any valid key."""
WORKER = "worker"
"""A key with the role worker, or an admin's."""
OPEN = "open"
"""No key: health probes, the page's files and the API description."""

_bearer = HTTPBearer(auto_error=False, scheme_name="key", description="API key: rk-...")


async def authorize(
    request: Request,
    needed: SecurityScopes,
    shown: Annotated[HTTPAuthorizationCredentials | None, Security(_bearer)],
) -> Key:
    """The request's key, if it has the scopes that the route names."""
    auth: Authenticator = request.app.state.auth
    key = await auth.key_of(request.headers.raw)
    for scope in needed.scopes:
        if scope == ADMIN:
            check_admin(key)
        elif scope == WORKER:
            check_worker(key)
        elif scope in get_args(Scope):
            key.may(cast(Scope, scope))
    return key


AdminKey = Annotated[Key, Security(authorize, scopes=[ADMIN])]
AnyKey = Annotated[Key, Security(authorize, scopes=[ANY])]
WorkerKey = Annotated[Key, Security(authorize, scopes=[WORKER])]
QueueKey = Annotated[Key, Security(authorize, scopes=["queue"])]
FilesKey = Annotated[Key, Security(authorize, scopes=["files"])]
InferenceKey = Annotated[Key, Security(authorize, scopes=["inference"])]
JobsKey = Annotated[Key, Security(authorize, scopes=["jobs"])]
BatchesKey = Annotated[Key, Security(authorize, scopes=["batches"])]


def owner_of(key: Key) -> str | None:
    """The owner whose objects the key reaches; None for the objects of all owners, which an admin reaches."""
    return None if key.rights.role == "admin" else key.id


def route_table(routers: Iterable[APIRouter]) -> Iterator[tuple[str, str, str]]:
    """Method, path and needed scope of every route: those of the routers, and the proxied ones."""
    for path, scope in PROXIED.items():
        yield "POST", path, scope
    for router in routers:
        for route in router.routes:
            assert isinstance(route, APIRoute), route
            for method in sorted(route.methods or ()):
                yield method, route.path, _scope_of(route)


def _scope_of(route: APIRoute) -> str:
    scopes = [
        scope
        for each in route.dependant.dependencies
        if each.call is authorize
        for scope in (each.own_oauth_scopes or ())
    ]
    return scopes[0] if scopes else OPEN
