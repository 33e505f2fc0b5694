"""The HTTP server's part of the config tree. Torch-free."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from rondo.web.config import ListenConfig, Several


class ServerConfig(ListenConfig):
    port: int = Field(8001, ge=0, le=65535, description="port to listen on; 0 takes a free one")
    api_key: Several | None = Field(
        None,
        min_length=1,
        description="API keys of clients, sent as Bearer token; several may be valid",
    )
    admin_key: str | None = Field(
        None,
        min_length=1,
        description="key of the administration routes (sleep, pause, ...); without a key they are off",
    )
    served_model_name: Several | None = Field(
        None, min_length=1, description="name of the model in requests, and aliases; default: the model's own"
    )
    chat_template: str | None = Field(
        None, description="Jinja file, or the template itself, instead of the model's own"
    )
    adapters: dict[str, str] = Field(
        {},
        description="adapters to load at the start, by model name: folders, jobs, or ORG/NAME of the Hub",
    )
    max_body_bytes: int | None = Field(
        None,
        ge=1024,
        description="largest request body; default: 4 MiB and 32 bytes per token of the context",
    )
    template_seconds: float = Field(
        10.0, gt=0, description="seconds in which the chat template must be rendered"
    )
    template_characters: int | None = Field(
        None, ge=1, description="longest rendered prompt in characters; default: twice the largest body"
    )
    allow_priority: bool = Field(False, description="accept the field priority of requests")
    matryoshka: bool = Field(
        False,
        description="accept shortened embeddings of a model whose config.json is silent about matryoshka training",
    )
    # fmt: off
    tool_call_parser: Literal[
        "auto",
        "none",
        "hermes",
        "qwen3_json",
        "qwen3_coder",
        "qwen3_xml",
        "llama3_json",
        "llama4_json",
        "llama4_pythonic",
        "pythonic",
        "olmo3",
        "mistral",
        "deepseek_v3",
        "deepseek_v31",
        "deepseek_v32",
        "deepseek_v4",
        "glm45",
        "glm47",
        "kimi_k2",
        "minimax_m2",
        "seed_oss",
        "granite",
        "jamba",
        "phi4_mini_json",
        "openai",
    ] = Field("auto", description="format of tool calls; auto: the chat template's")
    reasoning_parser: Literal[
        "auto",
        "none",
        "deepseek_r1",
        "qwen3",
        "deepseek_v3",
        "glm45",
        "glm47",
        "kimi_k2",
        "minimax_m2",
        "olmo3",
        "step3",
        "seed_oss",
        "mistral",
        "openai_gptoss",
    ] = Field("auto", description="format of the reasoning; auto: the chat template's")
    # fmt: on
    auto_tool_choice: bool = Field(
        True, description="accept tool_choice auto: the model decides whether to call tools"
    )
    metrics_alias: str | None = Field(None, description="second prefix of all metrics, such as vllm:")

    @model_validator(mode="after")
    def _keys_differ(self) -> ServerConfig:
        if self.admin_key is not None and self.admin_key in (self.api_key or ()):
            raise ValueError("admin_key must not be the api_key: whoever may ask the model may not stop it")
        return self

    @property
    def guarded(self) -> bool:
        return self.api_key is not None
