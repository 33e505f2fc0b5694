"""Run by LlamaIndex's Python with the URL of a server and its key: prints the results of completions, chats, streams,
tool calls, structured output and embeddings."""

import json
import sys
from typing import Any, Literal

from llama_index.core.llms import ChatMessage
from llama_index.core.prompts import PromptTemplate
from llama_index.core.tools import FunctionTool
from llama_index.embeddings.openai_like import OpenAILikeEmbedding
from llama_index.llms.openai_like import OpenAILike
from pydantic import BaseModel, Field

url, key = sys.argv[1:]
base = f"{url}/v1"


class Weather(BaseModel, extra="forbid"):
    """The weather in a city."""

    city: Literal["Paris", "Rome"]
    degrees: int = Field(ge=0, le=9)


def get_weather(city: Literal["Paris", "Rome"]) -> str:
    """The weather in a city."""
    return f"{city}: sunny"


def model(**options: Any) -> OpenAILike:
    return OpenAILike(
        model="tiny",
        api_base=base,
        api_key=key,
        temperature=0,
        max_retries=0,
        timeout=60,
        context_window=16384,
        **{"max_tokens": 20, "is_chat_model": True, "is_function_calling_model": True} | options,
    )


found: dict[str, Any] = {}
ask = [
    ChatMessage(role="system", content="Be short."),
    ChatMessage(role="user", content="How is the weather in Paris?"),
]
found["chat"] = model().chat(ask).message.content
*_, last = model().stream_chat(ask)
found["stream"] = last.message.content
plain = model(is_chat_model=False)
found["complete"] = plain.complete("How is").text
*_, end = plain.stream_complete("How is")
found["stream_complete"] = end.text

roomy, tool = model(max_tokens=200), FunctionTool.from_defaults(get_weather)
called = roomy.chat_with_tools([tool], chat_history=ask, tool_required=True)
calls = roomy.get_tool_calls_from_response(called)
*_, streamed = roomy.stream_chat_with_tools([tool], chat_history=ask, tool_required=True)
calls += roomy.get_tool_calls_from_response(streamed)
found["calls"] = [[call.tool_name, call.tool_kwargs] for call in calls]
result = ChatMessage(
    role="tool",
    content=get_weather(**calls[0].tool_kwargs),
    additional_kwargs={"tool_call_id": calls[0].tool_id},
)
found["after"] = model().chat_with_tools([tool], chat_history=[*ask, called.message, result]).message.content
answer = roomy.structured_predict(Weather, PromptTemplate("How is the weather in {city}?"), city="Paris")
found["structured"] = [answer.model_dump()]

embedding = OpenAILikeEmbedding(model_name="tiny", api_base=base, api_key=key, max_retries=0)
found["vectors"] = embedding.get_text_embedding_batch(["sunny", "rainy"])
print(json.dumps(found))
