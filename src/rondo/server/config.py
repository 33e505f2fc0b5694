"""The HTTP server's part of the config tree. Torch-free."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from rondo.web.config import ListenConfig, Several


class ServerConfig(ListenConfig):
    api_key: Several | None = Field(
        None,
        min_length=1,
        description="API key that requests to the model send as Bearer token: one key or several",
    )
    admin_key: str | None = Field(
        None,
        min_length=1,
        description="what the operator's verbs need (sleep, pause, ...); without it they are off",
    )
    served_model_name: Several | None = Field(
        None, min_length=1, description="the name clients ask for, and further ones; the model's by default"
    )
    chat_template: str | None = Field(
        None, description="a Jinja file, or the template itself, in place of the model's own"
    )
    adapters: dict[str, str] = Field({}, description="adapters' folders by the names they are served under")
    max_body_bytes: int | None = Field(
        None,
        ge=1024,
        description="the largest request body; by default 4 MiB and 32 bytes a token of the context",
    )
    template_seconds: float = Field(10.0, gt=0, description="the longest time to render the chat template")
    template_characters: int | None = Field(
        None, ge=1, description="the longest text of the chat template; by default twice the largest body"
    )
    allow_priority: bool = Field(False, description="whether clients may say which requests go first")
    matryoshka: bool = Field(
        False, description="whether embeddings may be cut: for a model trained so whose config.json is silent"
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
    ] = Field("auto", description="how the model writes tool calls; auto: as its chat template does")
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
    ] = Field("auto", description="how the model writes its reasoning; auto: as its chat template does")
    # fmt: on
    auto_tool_choice: bool = Field(True, description="whether the model may choose to call tools")
    metrics_alias: str | None = Field(None, description="repeat each metric under this prefix, e.g. vllm:")

    @model_validator(mode="after")
    def _keys_differ(self) -> ServerConfig:
        if self.admin_key is not None and self.admin_key in (self.api_key or ()):
            raise ValueError("admin_key must not be the api_key: whoever may ask the model may not stop it")
        return self

    @property
    def guarded(self) -> bool:
        return self.api_key is not None
