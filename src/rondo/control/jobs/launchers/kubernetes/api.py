"""The Kubernetes API as the launcher uses it."""

from __future__ import annotations

import os
import ssl
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import Any

import httpx

from rondo.base.errors import InvalidRequest, RondoError, Unavailable
from rondo.control.config import KubernetesConfig
from rondo.control.jobs.launchers.kubernetes.manifest import GROUPS, Kind, Manifest

SECONDS = 30.0
OWNER = "jobset.sigs.k8s.io/jobset-name"
"""Label of the pods of an attempt."""


class KubernetesApi:
    def __init__(self, config: KubernetesConfig) -> None:
        self.config, self.account = config, Path(config.account)

    def create(self, kind: Kind, manifest: Manifest) -> bool:
        """False if the cluster does not have the kind. An object with this name that exists is the same attempt."""
        response = self._call("POST", self._path(kind), json=manifest)
        if response.status_code == 404 and "namespace" not in _message(response):
            return False
        if response.status_code == 409:
            return True
        if response.status_code in (400, 404, 422):
            raise InvalidRequest(
                f"The Kubernetes API refused the job: {_message(response)}", code="kubernetes_refused"
            )
        self._check(response)
        return True

    def read(self, kind: Kind, name: str) -> Manifest | None:
        """The object; None if there is none."""
        response = self._call("GET", f"{self._path(kind)}/{name}")
        if response.status_code == 404:
            return None
        self._check(response)
        return dict(response.json())

    def delete(self, kind: Kind, name: str, grace: int | None) -> bool:
        """Deletes the object after its pods have ended. False if there is none."""
        options: dict[str, Any] = {
            "kind": "DeleteOptions",
            "apiVersion": "v1",
            "propagationPolicy": "Foreground",
        }
        if grace is not None:
            options["gracePeriodSeconds"] = grace
        response = self._call("DELETE", f"{self._path(kind)}/{name}", json=options)
        if response.status_code == 404:
            return False
        self._check(response)
        return True

    def create_secret(self, manifest: Manifest) -> None:
        """A Secret with this name that exists is of the same attempt."""
        response = self._call("POST", self._core("secrets"), json=manifest)
        if response.status_code != 409:
            self._check(response)

    def delete_secret(self, name: str) -> None:
        response = self._call("DELETE", f"{self._core('secrets')}/{name}")
        if response.status_code != 404:
            self._check(response)

    def pods(self, name: str) -> list[Manifest]:
        """Pods of an attempt that still exist."""
        response = self._call("GET", self._core("pods"), params={"labelSelector": f"{OWNER}={name}"})
        self._check(response)
        return list(response.json().get("items") or ())

    def delete_pods(self, name: str) -> None:
        """Kills the pods of an attempt at once."""
        query = {"labelSelector": f"{OWNER}={name}"}
        options = {"kind": "DeleteOptions", "apiVersion": "v1", "gracePeriodSeconds": 0}
        self._check(self._call("DELETE", self._core("pods"), json=options, params=query))

    def nodes(self) -> list[Manifest]:
        response = self._call("GET", "/api/v1/nodes")
        self._check(response)
        return list(response.json().get("items", ()))

    def _path(self, kind: Kind) -> str:
        version, plural = GROUPS[kind]
        return f"/apis/{version}/namespaces/{self.config.namespace}/{plural}"

    def _core(self, plural: str) -> str:
        return f"/api/v1/namespaces/{self.config.namespace}/{plural}"

    @cached_property
    def _client(self) -> httpx.Client:
        """Connections are shared by all calls, which come from several threads."""
        authority = self.account / "ca.crt"
        tls: ssl.SSLContext | bool = True
        if self._url().startswith("https:") and authority.is_file():
            tls = ssl.create_default_context(cafile=authority)
        return httpx.Client(verify=tls, timeout=SECONDS, trust_env=False)

    def _call(self, method: str, path: str, **more: Any) -> httpx.Response:
        url = self._url()
        headers = {}
        with suppress(FileNotFoundError):  # a proxy such as `kubectl proxy` needs no token
            headers["Authorization"] = f"Bearer {(self.account / 'token').read_text().strip()}"
        try:
            return self._client.request(method, url + path, headers=headers, **more)
        except httpx.HTTPError as error:
            raise Unavailable(
                f"The Kubernetes API at {url} does not answer: {error!r}.", code="kubernetes_failed"
            ) from error

    def _url(self) -> str:
        if self.config.api is not None:
            return self.config.api.rstrip("/")
        host, port = os.environ.get("KUBERNETES_SERVICE_HOST"), os.environ.get("KUBERNETES_SERVICE_PORT")
        if not host:
            raise Unavailable(
                "This gateway does not run in a Kubernetes pod: set gateway.jobs.kubernetes.api to the API's URL.",
                code="kubernetes_failed",
            )
        return f"https://{f'[{host}]' if ':' in host else host}:{port or 443}"

    def _check(self, response: httpx.Response) -> None:
        if response.status_code < 300:
            return
        text = f"The Kubernetes API answered {response.status_code}: {_message(response)}"
        if response.status_code in (401, 403):
            text += (
                " Allow the gateway's service account to create, get and delete trainjobs and jobsets, to create and "
                "delete secrets, to list and deletecollection pods, and to list nodes, in the namespace "
                f"{self.config.namespace!r}."
            )
        error = (
            Unavailable if response.status_code in (401, 403, 429) or response.is_server_error else RondoError
        )
        raise error(text, code="kubernetes_failed")


def _message(response: httpx.Response) -> str:
    with suppress(ValueError, TypeError, KeyError):
        return str(response.json()["message"])
    return response.text[:500]
