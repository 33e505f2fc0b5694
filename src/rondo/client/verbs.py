"""Operations of an engine's server under vLLM's names, written once for both HTTP clients: synchronous or awaitable.

Rondo's server and vLLM have the same routes, so that the clients work with both.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, Generic, Literal, TypeVar

from rondo.client.engine import PauseMode, RunningRequests

Answer = TypeVar("Answer")


class EngineVerbs(ABC, Generic[Answer]):
    """Facts about a server, and operations that need the admin key."""

    @abstractmethod
    def _call(
        self, method: str, path: str, body: object = None, headers: Mapping[str, str] | None = None
    ) -> Answer: ...

    @abstractmethod
    def _admin(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None = None,
        params: Mapping[str, Any] | None = None,
    ) -> Answer: ...

    def server_version(self) -> Answer:
        return self._call("GET", "/version")

    def model_cards(self) -> Answer:
        """`data` has the served models; the base model precedes its adapters."""
        return self._call("GET", "/v1/models")

    def tokenize(self, prompt: str, model: str, add_special_tokens: bool = True) -> Answer:
        body = {"model": model, "prompt": prompt, "add_special_tokens": add_special_tokens}
        return self._call("POST", "/tokenize", body)

    def pause(self, mode: PauseMode = "abort", clear_cache: bool = False) -> Answer:
        return self._admin("POST", "/pause", params={"mode": mode, "clear_cache": clear_cache})

    def resume(self) -> Answer:
        return self._admin("POST", "/resume")

    def is_paused(self) -> Answer:
        return self._admin("GET", "/is_paused")

    def sleep(self, level: int = 1, mode: PauseMode = "abort") -> Answer:
        return self._admin("POST", "/sleep", params={"level": level, "mode": mode})

    def wake_up(self, tags: Sequence[str] = ()) -> Answer:
        return self._admin("POST", "/wake_up", params={"tags": list(tags)})

    def is_sleeping(self) -> Answer:
        return self._admin("GET", "/is_sleeping")

    def reset_prefix_cache(self) -> Answer:
        return self._admin("POST", "/reset_prefix_cache")

    def abort_requests(self, request_ids: Sequence[str]) -> Answer:
        return self._admin("POST", "/abort_requests", {"request_ids": list(request_ids)})

    def load_lora_adapter(self, lora_name: str, lora_path: str, load_inplace: bool = False) -> Answer:
        body: dict[str, Any] = {"lora_name": lora_name, "lora_path": lora_path}
        if load_inplace:
            body["load_inplace"] = True
        return self._admin("POST", "/v1/load_lora_adapter", body)

    def unload_lora_adapter(self, lora_name: str) -> Answer:
        return self._admin("POST", "/v1/unload_lora_adapter", {"lora_name": lora_name})

    def init_weight_transfer_engine(self, init_info: Mapping[str, Any] | None = None) -> Answer:
        return self._admin("POST", "/init_weight_transfer_engine", {"init_info": dict(init_info or {})})

    def start_weight_update(self) -> Answer:
        return self._admin("POST", "/start_weight_update")

    def update_weights(self, update_info: Mapping[str, Any]) -> Answer:
        """`update_info` is {"path": a folder on the server's disk, "version": a number}, or has a "source" in place of
        the path."""
        return self._admin("POST", "/update_weights", {"update_info": dict(update_info)})

    def finish_weight_update(
        self, weight_version: int | str | None = None, requests: RunningRequests = "retain"
    ) -> Answer:
        """`requests`: running requests keep their KV cache, compute it again, or end."""
        body: dict[str, Any] = {"weight_version": weight_version}
        if requests != "retain":  # vLLM's servers have no such field
            body["requests"] = requests
        return self._admin("POST", "/finish_weight_update", body)

    def abort_weight_update(self) -> Answer:
        return self._admin("POST", "/abort_weight_update")

    def rollouts(
        self,
        job: str,
        where: Sequence[str] = (),
        *,
        step: int | None = None,
        sort: str = "step",
        order: Literal["asc", "desc"] = "desc",
        limit: int = 20,
        after: str | None = None,
    ) -> Answer:
        """A page of the rollouts of an RL job: `where` such as "reward>0.5" or "text~sorry"; `after` is the last id of
        the previous page."""
        options = {
            "where": list(where),
            "step": step,
            "sort": sort,
            "order": order,
            "limit": limit,
            "after": after,
        }
        params = {name: value for name, value in options.items() if value is not None}
        return self._admin("GET", f"/v1/rl/jobs/{job}/rollouts", params=params)

    def rollout(self, job: str, id: str) -> Answer:
        """One rollout with its tokens."""
        return self._admin("GET", f"/v1/rl/jobs/{job}/rollouts/{id}")

    def weight_info(self) -> Answer:
        return self._admin("GET", "/weight_info")

    def update_weight_version(self, new_version: int | str) -> Answer:
        """Names the version of the loaded weights; only vLLM has this route."""
        return self._admin("POST", "/update_weight_version", {"new_version": str(new_version)})
