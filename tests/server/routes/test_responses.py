"""`/v1/responses` as the `openai` client asks and reads it, from a model whose answers are known."""

import asyncio
import json

import httpx
import openai
import pytest
from openai.types.responses import Response

from rondo.server.routes.responses import Answering

WEATHER = {
    "type": "function",
    "name": "get_weather",
    "description": "The weather in a city.",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    "strict": True,
}
THOUGHT_AND_CALLS = (
    "<think>\nThe weather.\n</think>\n\nI look.\n"
    '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris"}}\n</tool_call>\n'
    '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Rome"}}\n</tool_call>'
)


def timeless(response: Response) -> dict:
    """All but what differs from one answer to the next."""
    body = response.model_dump()
    for key in ("id", "created_at", "completed_at"):
        del body[key]
    for item in body["output"]:
        del item["id"]
        item.pop("call_id", None)
        item.pop("parsed_arguments", None)
        for part in item.get("content") or []:
            part.pop("parsed", None)
    return body


def test_a_text(talk, hermes):
    hermes.says("Good morning.")
    answer = talk.responses.create(model="tiny", input="Hello", instructions="Be short.", temperature=0.5)
    assert (answer.output_text, answer.status, answer.object) == ("Good morning.", "completed", "response")
    assert answer.id.startswith("resp")
    assert (answer.temperature, answer.instructions, answer.store) == (0.5, "Be short.", False)
    sent = hermes.requests[-1]
    assert hermes.prompt == (
        "<|im_start|>system\nBe short.<|im_end|>\n<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\n"
    )
    assert (sent.sampling.temperature, sent.sampling.max_tokens) == (0.5, None)
    assert answer.usage.input_tokens == len(sent.prompt_ids)
    assert answer.usage.input_tokens + answer.usage.output_tokens == answer.usage.total_tokens
    Response.model_validate(answer.model_dump(), strict=False)


@pytest.mark.parametrize("text", ["Good morning.", THOUGHT_AND_CALLS, "<think>\nHm.", "", "<tool_call>{oops"])
@pytest.mark.parametrize("reason", ["stop", "length"])
def test_a_stream_says_what_the_whole_says(talk, hermes, text, reason):
    hermes.says(text + "<|im_end|>", reason=reason)
    options = {"model": "tiny", "input": "Hello", "tools": [WEATHER]}
    whole = talk.responses.create(**options)
    events = list(talk.responses.create(**options, stream=True))
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert [event.type for event in events[:2]] == ["response.created", "response.in_progress"]
    assert events[-1].type == f"response.{'completed' if reason == 'stop' else 'incomplete'}"
    assert timeless(events[-1].response) == timeless(whole)
    if reason == "length":
        assert (whole.status, whole.incomplete_details.reason) == ("incomplete", "max_output_tokens")
    with talk.responses.stream(**options) as stream:
        last = list(stream)[-1]
        if reason == "stop":
            assert timeless(stream.get_final_response()) == timeless(whole)
    assert timeless(last.response) == timeless(whole)

    async def asynchronous():
        other = openai.AsyncOpenAI(base_url=talk.base_url, api_key="none", max_retries=0)
        async with other, other.responses.stream(**options) as stream:
            return [event async for event in stream]

    assert timeless(asyncio.run(asynchronous())[-1].response) == timeless(whole)


def test_the_events_of_reasoning_text_and_calls(talk, hermes):
    hermes.says(THOUGHT_AND_CALLS)
    events = list(talk.responses.create(model="tiny", input="Hello", tools=[WEATHER], stream=True))
    kinds = []
    for event in events:
        if not kinds or kinds[-1] != event.type:
            kinds.append(event.type.removeprefix("response."))
    kinds = [kind for i, kind in enumerate(kinds) if i == 0 or kinds[i - 1] != kind]
    call = [
        "output_item.added",
        "function_call_arguments.delta",
        "function_call_arguments.done",
        "output_item.done",
    ]
    assert kinds == [
        *("created", "in_progress"),
        *("output_item.added", "content_part.added", "reasoning_text.delta", "reasoning_text.done"),
        *("content_part.done", "output_item.done"),
        *("output_item.added", "content_part.added", "output_text.delta", "output_text.done"),
        *("content_part.done", "output_item.done"),
        *call,
        *call,
        "completed",
    ]
    done = [event.item for event in events if event.type == "response.output_item.done"]
    assert done == events[-1].response.output
    by_id = {item.id: "" for item in done}
    for event in events:
        if event.type.endswith(".delta"):
            by_id[event.item_id] += event.delta
            assert done[event.output_index].id == event.item_id
    assert list(by_id.values()) == ["The weather.", "I look.", '{"city": "Paris"}', '{"city": "Rome"}']
    assert len({item.call_id for item in done[2:]}) == 2
    thought = len(hermes.tokenizer.encode("\nThe weather.\n", add_special=False))
    marker = len(hermes.tokenizer.encode("</think>", add_special=False))
    counted = events[-1].response.usage.output_tokens_details.reasoning_tokens
    assert thought <= counted < thought + marker


def test_calls_are_answered(talk, hermes):
    hermes.says(THOUGHT_AND_CALLS)
    first = talk.responses.create(model="tiny", input="How is the weather?", tools=[WEATHER])
    calls = [item for item in first.output if item.type == "function_call"]
    assert [json.loads(call.arguments) for call in calls] == [{"city": "Paris"}, {"city": "Rome"}]
    items = [
        {"role": "user", "content": [{"type": "input_text", "text": "How is the weather?"}]},
        *first.output,
    ]
    items += [{"type": "function_call_output", "call_id": call.call_id, "output": "sunny"} for call in calls]
    hermes.says("Sunny.")
    second = talk.responses.create(
        model="tiny", input=items, tools=[WEATHER], include=["reasoning.encrypted_content"]
    )
    assert second.output_text == "Sunny."
    said = hermes.prompt.partition("<|im_end|>\n<|im_start|>user\n")[2]
    assert said.endswith(
        "How is the weather?<|im_end|>\n<|im_start|>assistant\n<think>\nThe weather.\n</think>\n\nI look.\n"
        '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris"}}\n</tool_call>\n'
        '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Rome"}}\n</tool_call><|im_end|>\n'
        + "<|im_start|>user\n<tool_response>\nsunny\n</tool_response><|im_end|>\n" * 2
        + "<|im_start|>assistant\n"
    )


def test_without_parallel_calls_the_first_is_the_only_one(talk, hermes):
    hermes.says(THOUGHT_AND_CALLS)
    answer = talk.responses.create(model="tiny", input="Hello", tools=[WEATHER], parallel_tool_calls=False)
    assert [item.type for item in answer.output] == ["reasoning", "message", "function_call"]


def test_conversations_in_all_their_forms(talk, hermes):
    hermes.says("Yes.")
    talk.responses.create(
        model="tiny",
        input=[
            {"role": "developer", "content": "Be kind."},
            {"role": "user", "content": "a"},
            {"role": "assistant", "content": "b"},
            {
                "type": "message",
                "role": "assistant",
                "content": [{"type": "output_text", "text": "c"}],
                "id": "m",
            },
            {
                "type": "reasoning",
                "id": "r",
                "summary": [],
                "content": [{"type": "reasoning_text", "text": "d"}],
            },
            {"type": "message", "role": "user", "content": "e"},
        ],
        user="me",
        metadata={"k": "v"},
        store=False,
        truncation="disabled",
        text={"format": {"type": "text"}},
        reasoning={"summary": "auto"},
        extra_body={"top_k": 5, "seed": 1, "prompt_cache_key": "x"},
    )
    turns = (
        "system\nBe kind.",
        "user\na",
        "assistant\nb",
        "assistant\nc",
        "assistant\n<think>\nd\n</think>\n\n",
        "user\ne",
    )
    assert (
        hermes.prompt
        == "".join(f"<|im_start|>{turn}<|im_end|>\n" for turn in turns) + "<|im_start|>assistant\n"
    )
    assert (hermes.requests[-1].sampling.top_k, hermes.requests[-1].sampling.seed) == (5, 1)


@pytest.mark.parametrize(
    ("change", "param", "says"),
    [
        ({"previous_response_id": "resp_1"}, "previous_response_id", "keeps no responses"),
        ({"conversation": "conv_1"}, "conversation", "keeps no responses"),
        ({"store": True}, "store", "keeps no responses"),
        ({"background": True}, "background", "false"),
        ({"input": []}, "input", "at least one"),
        ({"input": [{"type": "reasoning", "summary": []}]}, "input", "nothing but empty reasoning"),
        ({"text": {"format": {"type": "json_schema"}}}, "text", "takes name and schema; got nothing"),
        ({"text": {"format": {"type": "text", "name": "x"}}}, "text", "takes nothing else; got name"),
        ({"input": "a" * 50_000}, "input", "(50050 characters)"),
        ({"max_output_tokens": 10**30}, "max_output_tokens", "max_output_tokens must be between"),
        ({"input": 5}, "input", "list of items"),
        ({"input": [{"type": "item_reference", "id": "x"}]}, "input", "item_reference"),
        ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "input", "input.0.content"),
        ({"input": [{"role": "user"}]}, "input", "input.0.content"),
        ({"input": [{"type": ["x"], "role": "user", "content": "a"}]}, "input", "not supported"),
        (
            {"input": [{"type": "function_call", "call_id": "1", "name": "f", "arguments": "{"}]},
            "input",
            "JSON object",
        ),
        ({"input": "abc " * 6000}, "input", "2048"),
        ({"tools": [{"type": "web_search"}]}, "tools", "function"),
        ({"tool_choice": "required"}, "tool_choice", "tools"),
        ({"tool_choice": {"type": "function", "name": "f"}, "tools": [WEATHER]}, "tool_choice", "f"),
        ({"include": ["file_search_call.results"]}, "include", "reasoning.encrypted_content"),
        ({"include": ["message.output_text.logprobs"]}, "include", "chat/completions"),
        ({"top_logprobs": 2}, "top_logprobs", "include"),
        ({"reasoning": {"effort": "high"}}, "reasoning", "template"),
        ({"max_output_tokens": 0}, "max_output_tokens", "0"),
        ({"temperature": 1000}, "temperature", "between"),
        ({"truncation": "auto"}, "truncation", "disabled"),
        ({"stream_options": {"include_obfuscation": False}}, "stream_options", "stream"),
        ({"max_tool_calls": 3}, "max_tool_calls", "unknown"),
        ({"model": "gpt"}, "model", "does not exist"),
    ],
)
def test_bad_requests_name_the_field(served, change, param, says):
    answer = httpx.post(served[1].url + "/v1/responses", json={"model": "tiny", "input": "Hello", **change})
    assert answer.status_code == (404 if param == "model" else 400), answer.text
    assert answer.json()["error"]["param"] == param
    assert says in answer.json()["error"]["message"]


def test_nothing_is_stored(talk):
    for ask in (talk.responses.retrieve, talk.responses.delete, talk.responses.cancel):
        with pytest.raises(openai.NotFoundError, match="keeps no responses"):
            ask("resp_1")
    with pytest.raises(openai.NotFoundError, match="keeps no responses"):
        talk.responses.input_items.list("resp_1")


def test_a_real_model_and_its_logprobs(running):
    """Through the real engine, without a parser."""
    talk = openai.OpenAI(base_url=running.url + "/v1", api_key="none", max_retries=0)
    options = {"model": "tiny", "input": "abc def", "max_output_tokens": 8, "temperature": 0}
    options |= {"include": ["message.output_text.logprobs"], "top_logprobs": 2}
    answer = talk.responses.create(**options)
    chat = talk.chat.completions.create(
        model="tiny",
        messages=[{"role": "user", "content": "abc def"}],
        max_tokens=8,
        temperature=0,
        logprobs=True,
        top_logprobs=2,
    )
    assert answer.output_text == chat.choices[0].message.content
    logprobs = answer.output[0].content[0].logprobs
    assert [one.logprob for one in logprobs] == [one.logprob for one in chat.choices[0].logprobs.content]
    assert answer.usage.output_tokens == chat.usage.completion_tokens
    streamed = list(talk.responses.create(**options, stream=True))[-1].response
    assert streamed.output_text == answer.output_text
    assert [one.logprob for one in streamed.output[0].content[0].logprobs] == [
        one.logprob for one in logprobs
    ]


def test_a_bug_in_the_middle_of_a_stream_reaches_the_client(served, talk, hermes, monkeypatch):
    hermes.says("Good morning.")

    async def breaks(request):
        async for chunk in hermes.generate(request):
            yield chunk
            raise KeyError("secret")

    monkeypatch.setattr(served[1].engine, "generate", breaks)
    with pytest.raises(openai.APIError, match="internal error"):
        list(talk.responses.create(model="tiny", input="Hello", stream=True))


def test_a_whole_response_is_built_once_and_read_at_its_end(talk, hermes, monkeypatch):
    built, make = [], Answering._response
    monkeypatch.setattr(Answering, "_response", lambda *given: (built.append(given[1]), make(*given))[1])
    hermes.says("Good morning.")
    options = {"model": "tiny", "input": "Hello", "tools": [WEATHER]}
    talk.responses.create(**options)
    assert (built, hermes.requests[-1].whole) == (["completed"], True)
    events = list(talk.responses.create(**options, stream=True))
    assert [event.type for event in events[:2]] == ["response.created", "response.in_progress"]
    assert (built[1:], hermes.requests[-1].whole) == (["in_progress", "completed"], False)
    assert [event.response.tools[0].name for event in (events[0], events[-1])] == ["get_weather"] * 2
