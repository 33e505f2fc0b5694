"""Run by LangChain's Python with the URL of a server and its key: prints the results of chats, streams, tool
calls, structured output and embeddings, and the tokens that LangChain counted."""

import asyncio
import json
import sys
from typing import Any, Literal

from langchain.agents import create_agent
from langchain.agents.structured_output import ToolStrategy
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI, OpenAIEmbeddings
from pydantic import BaseModel, Field

url, key = sys.argv[1:]
base = f"{url}/v1"


class Weather(BaseModel, extra="forbid"):
    """The weather in a city."""

    city: Literal["Paris", "Rome"]
    degrees: int = Field(ge=0, le=9)


@tool
def get_weather(city: Literal["Paris", "Rome"]) -> str:
    """The weather in a city."""
    return f"{city}: sunny"


usage = [0, 0]


def counted(message: AIMessage) -> AIMessage:
    assert message.usage_metadata is not None
    usage[0] += message.usage_metadata["input_tokens"]
    usage[1] += message.usage_metadata["output_tokens"]
    return message


def joined(chunks: Any) -> AIMessage:
    whole, *rest = chunks
    for chunk in rest:
        whole += chunk
    return counted(whole)


def chat(**options: Any) -> ChatOpenAI:
    return ChatOpenAI(
        model="tiny",
        base_url=base,
        api_key=key,
        temperature=0,
        max_retries=0,
        timeout=60,
        **{"max_tokens": 20, "stream_usage": True} | options,
    )


found: dict[str, Any] = {}
ask = [("system", "Be short."), ("user", "How is the weather in Paris?")]
found["chat"] = counted(chat().invoke(ask)).text
found["stream"] = joined(chat().stream(ask)).text
found["async"] = counted(asyncio.run(chat().ainvoke(ask))).text
found["batch"] = [counted(each).text for each in chat().batch([ask, ask])]
found["responses"] = counted(chat(use_responses_api=True).invoke(ask)).text

roomy = chat(max_tokens=200)
forced = roomy.bind_tools([get_weather], tool_choice="get_weather", strict=True)
called = counted(forced.invoke(ask))
streamed = joined(forced.stream(ask))
found["calls"] = [[call["name"], call["args"]] for each in (called, streamed) for call in each.tool_calls]
results = [get_weather.invoke(call) for call in called.tool_calls]
assert all(isinstance(result, ToolMessage) for result in results)
found["results"] = [result.content for result in results]
after = [HumanMessage("How is the weather in Paris?"), called, *results]
found["after"] = counted(chat().bind_tools([get_weather]).invoke(after)).text

found["structured"] = []
for method in ("json_schema", "function_calling"):
    answer = roomy.with_structured_output(Weather, method=method, include_raw=True).invoke(ask)
    counted(answer["raw"])
    assert answer["parsing_error"] is None, answer["parsing_error"]
    found["structured"].append(answer["parsed"].model_dump())
agent = create_agent(roomy, tools=[], response_format=ToolStrategy(Weather))
state = agent.invoke({"messages": ask})
for message in state["messages"]:
    if isinstance(message, AIMessage):
        counted(message)
found["structured"].append(state["structured_response"].model_dump())

# Without this it cuts texts with tiktoken, whose files it downloads.
embeddings = OpenAIEmbeddings(model="tiny", base_url=base, api_key=key, check_embedding_ctx_length=False)
found["vectors"] = embeddings.embed_documents(["sunny", "rainy"])
found["usage"] = usage
print(json.dumps(found))
