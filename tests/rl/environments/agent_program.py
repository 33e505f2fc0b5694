"""An agent as anybody writes one: it knows of nothing but OpenAI's client, which finds its endpoint by itself."""

import json
import sys

import openai

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "calculate",
            "description": "Works out a sum",
            "parameters": {"type": "object", "properties": {"sum": {"type": "string"}}, "required": ["sum"]},
        },
    }
]


def main() -> None:
    client = openai.OpenAI(max_retries=0)
    messages = [{"role": "user", "content": sys.stdin.read()}]
    while True:
        message = (
            client.chat.completions.create(model="gpt-4o", messages=messages, tools=TOOLS, temperature=0.2)
            .choices[0]
            .message
        )
        messages.append(message.model_dump(exclude_none=True))
        if not message.tool_calls:
            print(message.content)
            return
        for call in message.tool_calls:
            a, b = json.loads(call.function.arguments)["sum"].split("*")
            messages.append({"role": "tool", "tool_call_id": call.id, "content": str(int(a) * int(b))})


main()
