"""Run by LiteLLM's Python with the URLs of a server and of one with a short context, and their key: prints the results
of chats, streams, tools, structured output, embeddings and the fallback for a prompt that exceeds the context, and the
tokens that LiteLLM counted."""

import asyncio
import json
import sys
from typing import Any, Literal

import litellm
from pydantic import BaseModel, Field

url, short, key = sys.argv[1:]
litellm.telemetry = False
litellm.suppress_debug_info = True


class Weather(BaseModel, extra="forbid"):
    """The weather in a city."""

    city: Literal["Paris", "Rome"]
    degrees: int = Field(ge=0, le=9)


usage = [0, 0]
ask = [
    {"role": "system", "content": "Be short."},
    {"role": "user", "content": "How is the weather in Paris?"},
]


def counted(answer: Any) -> Any:
    usage[0] += answer.usage.prompt_tokens
    usage[1] += answer.usage.completion_tokens
    return answer


def options(max_tokens: int = 20, provider: str = "openai", **more: Any) -> dict[str, Any]:
    return {
        "model": f"{provider}/tiny",
        "messages": ask,
        "api_base": f"{url}/v1",
        "api_key": key,
        "temperature": 0,
        "max_tokens": max_tokens,
        "timeout": 60,
    } | more


def streamed(**more: Any) -> Any:
    asked = options(stream=True, stream_options={"include_usage": True}, **more)
    chunks = list(litellm.completion(**asked))
    return counted(litellm.stream_chunk_builder(chunks, messages=asked["messages"])).choices[0].message


def calls_of(message: Any) -> list[Any]:
    return [[call.function.name, json.loads(call.function.arguments)] for call in message.tool_calls]


parameters = Weather.model_json_schema()
tool = {"type": "function", "function": {"name": "get_weather", "parameters": parameters}}
forced = {"tools": [tool], "tool_choice": {"type": "function", "function": {"name": "get_weather"}}}
found: dict[str, Any] = {"chat": [], "structured": []}
for provider in ("openai", "hosted_vllm"):
    found["chat"] += [
        counted(litellm.completion(**options(provider=provider))).choices[0].message.content,
        streamed(provider=provider).content,
    ]
    typed = counted(litellm.completion(**options(200, provider, response_format=Weather)))
    found["structured"].append(json.loads(typed.choices[0].message.content))
found["async"] = counted(asyncio.run(litellm.acompletion(**options()))).choices[0].message.content

called = counted(litellm.completion(**options(200, **forced))).choices[0].message
found["calls"] = calls_of(called) + calls_of(streamed(max_tokens=200, **forced))
message = called.model_dump()
result = {"role": "tool", "tool_call_id": message["tool_calls"][0]["id"], "content": "sunny"}
messages = [*ask, message, result]
found["after"] = (
    counted(litellm.completion(**options(messages=messages, tools=[tool]))).choices[0].message.content
)

to_server = {"model": "openai/tiny", "api_base": f"{url}/v1", "api_key": key}
found["vectors"] = [
    each["embedding"] for each in litellm.embedding(input=["sunny", "rainy"], **to_server).data
]

deployments = [
    {"model_name": name, "litellm_params": {**to_server, "api_base": f"{base}/v1"}}
    for name, base in (("short", short), ("long", url))
]
router = litellm.Router(deployments, context_window_fallbacks=[{"short": ["long"]}], num_retries=0)
found |= {"exceeded": [], "fallback": [], "direct": []}
for times in (20, 280):  # the server counts the tokens of the first prompt, and the characters of the second
    long = [{"role": "user", "content": "How is the weather in Paris? " * times}]
    try:
        litellm.completion(**options(messages=long, api_base=f"{short}/v1"))
    except litellm.ContextWindowExceededError as error:
        found["exceeded"].append(str(error))
    fallen = counted(router.completion(model="short", messages=long, max_tokens=20, temperature=0))
    found["fallback"].append(fallen.choices[0].message.content)
    direct = counted(litellm.completion(**options(messages=long)))
    found["direct"].append(direct.choices[0].message.content)
found["usage"] = usage
print(json.dumps(found))
