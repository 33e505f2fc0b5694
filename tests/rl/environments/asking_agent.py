"""An agent of two turns, as anybody writes one: it knows of nothing but OpenAI's client, which finds its endpoint by
itself."""

import sys

import openai


def main() -> None:
    client = openai.OpenAI(max_retries=0)
    messages = [{"role": "user", "content": sys.stdin.read()}]
    for news in ("check it", None):
        answer = client.chat.completions.create(model="gpt-4o", messages=messages, max_tokens=6)
        messages.append({"role": "assistant", "content": answer.choices[0].message.content})
        messages += [{"role": "user", "content": news}] if news else []
    print(messages[-1]["content"])


main()
