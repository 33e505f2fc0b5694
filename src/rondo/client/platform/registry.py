"""The registry of a gateway: `rondo.Client().promote("reader")`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, Generic, TypeVar
from urllib.parse import quote, urlencode

Answer = TypeVar("Answer")


class RegistryVerbs(ABC, Generic[Answer]):
    """Single calls, written once for both clients. A model is named by an alias, a name, `latest`, a hash or
    `HASH@STEP`."""

    @abstractmethod
    def _call(
        self, method: str, path: str, body: object = None, headers: Mapping[str, str] | None = None
    ) -> Answer: ...

    def registry(self, **filters: Any) -> Answer:
        """Registered models, the newest first. Filters: name, job, kind, stage, after, limit."""
        given = {name: value for name, value in filters.items() if value is not None}
        return self._call("GET", f"/v1/registry?{urlencode(given)}")

    def registered(self, model: str) -> Answer:
        return self._call("GET", f"/v1/registry/{_quoted(model)}")

    def register(self, **fields: Any) -> Answer:
        """Registers the model of a `job`, with `step` its checkpoint, or of a `source`; optional: `name`, `base`."""
        return self._call(
            "POST", "/v1/registry", {name: value for name, value in fields.items() if value is not None}
        )

    def promote(self, model: str) -> Answer:
        return self._call("POST", f"/v1/registry/{_quoted(model)}/promote")

    def rollback(self, model: str) -> Answer:
        return self._call("POST", f"/v1/registry/{_quoted(model)}/rollback")

    def aliases(self) -> Answer:
        return self._call("GET", "/v1/registry/aliases")

    def set_alias(self, alias: str, model: str) -> Answer:
        return self._call("PUT", f"/v1/registry/aliases/{_quoted(alias)}", {"model": model})

    def remove_alias(self, alias: str) -> Answer:
        return self._call("DELETE", f"/v1/registry/aliases/{_quoted(alias)}")

    def load_model(self, model: str) -> Answer:
        """Loads the model and waits until it answers."""
        return self._call("POST", f"/v1/registry/{_quoted(model)}/load")

    def unload_model(self, model: str) -> Answer:
        return self._call("POST", f"/v1/registry/{_quoted(model)}/unload")

    def unregister(self, model: str) -> Answer:
        """Removes the model from the registry; its files stay."""
        return self._call("DELETE", f"/v1/registry/{_quoted(model)}")


def _quoted(name: str) -> str:
    return quote(name, safe="@:")
