"""Ready endpoints of a Kubernetes service, from the EndpointSlices of the cluster's API.

The list is followed by a watch from its resource version. The API ends a watch after some minutes, and answers 410 if
the version is too old; then the list is read again. The pod's service account needs the verbs `list` and `watch` on
`endpointslices` of the group `discovery.k8s.io`.
"""

from __future__ import annotations

import asyncio
import json
import os
import ssl
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp

from rondo.gateway.config import GatewayConfig

WATCH_SECONDS = 300
SPARE_SECONDS = 30.0
"""Time after which a watch that should have ended counts as lost."""
WATCH_PAUSE = 0.5
"""Time between two watches; changes meanwhile are the first events of the next one."""
LIST_SECONDS = 30.0
PAGE = 500
LONGEST_LINE = 16 << 20
GONE = 410


class DiscoveryFailed(Exception):
    """The source of engines does not answer as expected."""


FAILED = (DiscoveryFailed, aiohttp.ClientError, TimeoutError, OSError, ValueError, KeyError, TypeError)
Slices = dict[str, dict[str, Any]]


@dataclass(frozen=True)
class ServiceName:
    namespace: str
    service: str
    port: str | None
    """Number or name of a port; by default the slice's first one."""


class KubernetesService:
    def __init__(self, name: ServiceName, config: GatewayConfig) -> None:
        self.name, self.config = name, config
        self.account = Path(config.kubernetes_account)
        self.url = f"{self._api()}/apis/discovery.k8s.io/v1/namespaces/{name.namespace}/endpointslices"

    async def addresses(self) -> AsyncGenerator[frozenset[str], None]:
        """URLs of the ready endpoints at each change, until a watch fails or expires."""
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=self.config.connect_seconds)
        async with aiohttp.ClientSession(timeout=timeout, read_bufsize=LONGEST_LINE) as session:
            slices, version = await self._list(session)
            last = urls_of(slices, self.name.port)
            yield last
            while True:
                async for event in self._watch(session, version):
                    kind, found = event["type"], event["object"]
                    if kind == "ERROR":
                        if found.get("code") == GONE:
                            return
                        raise DiscoveryFailed(f"the watch ended: {found.get('message')}")
                    version = found["metadata"]["resourceVersion"]
                    _apply(slices, kind, found)
                    if (urls := urls_of(slices, self.name.port)) != last:
                        last = urls
                        yield urls
                await asyncio.sleep(WATCH_PAUSE)

    async def _list(self, session: aiohttp.ClientSession) -> tuple[Slices, str]:
        slices: Slices = {}
        page: dict[str, str] = {"limit": str(PAGE)}
        while True:
            async with self._get(session, page, LIST_SECONDS) as response:
                if response.status == GONE:  # between two pages
                    raise DiscoveryFailed("the list expired while it was read")
                await self._check(response)
                found = await response.json()
            slices |= {each["metadata"]["name"]: each for each in found["items"]}
            version, rest = found["metadata"]["resourceVersion"], found["metadata"].get("continue")
            if not rest:
                return slices, version
            page["continue"] = rest

    async def _watch(self, session: aiohttp.ClientSession, version: str) -> AsyncIterator[dict[str, Any]]:
        """Events until the API ends the watch; an expired version is an event too."""
        query = {
            "watch": "1",
            "resourceVersion": version,
            "allowWatchBookmarks": "true",
            "timeoutSeconds": str(WATCH_SECONDS),
        }
        async with self._get(session, query, WATCH_SECONDS + SPARE_SECONDS) as response:
            if response.status == GONE:
                yield {"type": "ERROR", "object": {"code": GONE}}
                return
            await self._check(response)
            async for line in response.content:
                yield json.loads(line)

    def _get(self, session: aiohttp.ClientSession, query: dict[str, str], seconds: float) -> Any:
        query = {"labelSelector": f"kubernetes.io/service-name={self.name.service}", **query}
        headers = {}
        with suppress(FileNotFoundError):  # a proxy such as `kubectl proxy` needs no token
            token = (self.account / "token").read_text().strip()  # each time, because it is rotated
            headers["Authorization"] = f"Bearer {token}"
        timeout = aiohttp.ClientTimeout(total=seconds, sock_connect=self.config.connect_seconds)
        return session.get(self.url, params=query, headers=headers, ssl=self._tls(), timeout=timeout)

    async def _check(self, response: aiohttp.ClientResponse) -> None:
        if response.status == 200:
            return
        text = (await response.content.read(4096)).decode(errors="replace")
        with suppress(ValueError, TypeError, KeyError):
            text = json.loads(text)["message"]
        remedy = ""
        if response.status in (401, 403):
            remedy = (
                f" Allow the pod's service account to list and watch endpointslices in the namespace "
                f"{self.name.namespace!r}."
            )
        raise DiscoveryFailed(f"the Kubernetes API answered {response.status}: {text}.{remedy}")

    def _api(self) -> str:
        if self.config.kubernetes_api is not None:
            return self.config.kubernetes_api.rstrip("/")
        host, port = os.environ.get("KUBERNETES_SERVICE_HOST"), os.environ.get("KUBERNETES_SERVICE_PORT")
        if not host:
            raise DiscoveryFailed(
                "this process does not run in a Kubernetes pod: set gateway.kubernetes_api to the API's URL"
            )
        return f"https://{f'[{host}]' if ':' in host else host}:{port or 443}"

    def _tls(self) -> ssl.SSLContext | bool:
        authority = self.account / "ca.crt"
        if not self.url.startswith("https:") or not authority.is_file():
            return True
        return ssl.create_default_context(cafile=authority)


def urls_of(slices: Slices, port: str | None) -> frozenset[str]:
    return frozenset(url for each in slices.values() for url in _of_slice(each, port))


def _of_slice(found: dict[str, Any], wanted: str | None) -> Iterator[str]:
    """URLs of a slice's ready endpoints. An endpoint without conditions counts as ready."""
    port = _port(found.get("ports") or (), wanted)
    if port is None:
        return
    for endpoint in found.get("endpoints") or ():
        if (endpoint.get("conditions") or {}).get("ready") is not False and endpoint.get("addresses"):
            address = endpoint["addresses"][0]  # all addresses of an endpoint are equivalent
            host = f"[{address}]" if found.get("addressType") == "IPv6" else address
            yield f"http://{host}:{port}"


def _port(ports: Any, wanted: str | None) -> int | None:
    if wanted is not None and wanted.isdigit():
        return int(wanted)
    for port in ports:
        if port.get("protocol", "TCP") == "TCP" and wanted in (None, port.get("name")):
            number: int | None = port.get("port")
            return number
    return None


def _apply(slices: Slices, kind: str, found: dict[str, Any]) -> None:
    name = found["metadata"].get("name")
    if kind == "DELETED":
        slices.pop(name, None)
    elif kind in ("ADDED", "MODIFIED"):
        slices[name] = found
