"""Run by pydantic-ai's Python with the URL of a server and its key: prints the results of agents with text, streams,
tools and typed output, and the tokens that pydantic-ai counted."""

import asyncio
import json
import sys
from typing import Any, Literal

from pydantic import BaseModel, Field
from pydantic_ai import Agent, NativeOutput, RunContext, ToolDefinition, ToolOutput
from pydantic_ai.capabilities import PrepareOutputTools
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.openai import OpenAIProvider

url, key = sys.argv[1:]
provider = OpenAIProvider(base_url=f"{url}/v1", api_key=key)
chat, responses = OpenAIChatModel("tiny", provider=provider), OpenAIResponsesModel("tiny", provider=provider)


class Weather(BaseModel, extra="forbid"):
    """The weather in a city."""

    city: Literal["Paris", "Rome"]
    degrees: int = Field(ge=0, le=9)


usage = [0, 0]


def counted(result: Any) -> Any:
    usage[0] += result.usage.input_tokens
    usage[1] += result.usage.output_tokens
    return result


def agent(model: Any = chat, max_tokens: int = 20, **options: Any) -> Agent[None, Any]:
    settings = {"temperature": 0.0, "max_tokens": max_tokens, "timeout": 60, "parallel_tool_calls": False}
    return Agent(model, instructions="Be short.", model_settings=settings, retries=0, **options)


async def streamed(one: Agent[None, Any]) -> Any:
    async with one.run_stream(ask) as result:
        output = await result.get_output()
        return counted(result) and output


ask = "How is the weather in Paris?"
found: dict[str, Any] = {}
found["chat"] = counted(agent().run_sync(ask)).output
found["stream"] = asyncio.run(streamed(agent()))
found["responses"] = counted(agent(responses).run_sync(ask)).output

found["structured"] = []
for output in (ToolOutput(Weather), NativeOutput(Weather, strict=True)):
    typed = agent(max_tokens=200, output_type=output)
    found["structured"].append(counted(typed.run_sync(ask)).output.model_dump())
    found["structured"].append(asyncio.run(streamed(typed)).model_dump())

found["calls"] = []


async def once(context: RunContext[None], tool: ToolDefinition) -> ToolDefinition | None:
    """The first step has this tool and must call it; afterwards only the output's tool is left."""
    return tool if context.run_step == 1 else None


async def only_after(context: RunContext[None], tools: list[ToolDefinition]) -> list[ToolDefinition]:
    return [] if context.run_step == 1 else tools


two_steps = agent(
    max_tokens=200, output_type=ToolOutput(Weather), capabilities=[PrepareOutputTools(only_after)]
)


@two_steps.tool_plain(prepare=once)
def get_weather(city: Literal["Paris", "Rome"]) -> str:
    """The weather in a city."""
    found["calls"].append(["get_weather", {"city": city}])
    return f"{city}: sunny"


found["structured"].append(counted(two_steps.run_sync(ask)).output.model_dump())
found["usage"] = usage
print(json.dumps(found))
