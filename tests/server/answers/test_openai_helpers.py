"""What the `openai` client does on top of the API: answers and functions as pydantic's models, and streams."""

import asyncio

import openai
import pydantic
import pytest

from server.routes.test_responses import THOUGHT_AND_CALLS

ASK = [{"role": "user", "content": "How is the weather in Paris?"}]
CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris"}}\n</tool_call>'


class get_weather(pydantic.BaseModel):
    """The weather in a city."""

    city: str


class Answer(pydantic.BaseModel):
    city: str
    degrees: int | None = None


TEXT = '{"city": "Paris", "degrees": 7}'
MEANT = Answer(city="Paris", degrees=7)
TOOL = openai.pydantic_function_tool(get_weather)
FLAT = {"type": "function", **TOOL["function"]}
"""As `client.responses` takes it."""


def asynchronous(talk, work):
    async def go():
        async with openai.AsyncOpenAI(base_url=talk.base_url, api_key="none", max_retries=0) as client:
            return await work(client)

    return asyncio.run(go())


def test_chat_parses_an_answer(talk, hermes):
    hermes.says(TEXT)
    options = {"model": "tiny", "messages": ASK, "response_format": Answer}
    assert talk.chat.completions.parse(**options).choices[0].message.parsed == MEANT
    assert hermes.requests[-1].sampling.structured_outputs is not None
    with talk.chat.completions.stream(**options) as stream:
        kinds = {event.type for event in stream}
        assert stream.get_final_completion().choices[0].message.parsed == MEANT
    assert {"content.delta", "content.done"} <= kinds

    async def work(client):
        parsed = await client.chat.completions.parse(**options)
        async with client.chat.completions.stream(**options) as stream:
            return parsed.choices[0].message, (await stream.get_final_completion()).choices[0].message

    assert [message.parsed for message in asynchronous(talk, work)] == [MEANT, MEANT]


def test_chat_parses_a_call_as_it_comes(talk, hermes):
    hermes.says("<think>\nHm.\n</think>\n\n" + CALL + "\n" + CALL.replace("Paris", "Rome"))
    options = {"model": "tiny", "messages": ASK, "tools": [TOOL]}
    with talk.chat.completions.stream(**options, stream_options={"include_usage": True}) as stream:
        events = list(stream)
        final = stream.get_final_completion()
    deltas = [event for event in events if event.type == "tool_calls.function.arguments.delta"]
    assert "".join(event.arguments_delta for event in deltas if event.index == 0) == '{"city": "Paris"}'
    assert len(deltas) > 6
    done = [event for event in events if event.type == "tool_calls.function.arguments.done"]
    assert [event.parsed_arguments for event in done] == [get_weather(city="Paris"), get_weather(city="Rome")]
    calls = final.choices[0].message.tool_calls
    assert [call.function.parsed_arguments for call in calls] == [event.parsed_arguments for event in done]
    assert final.usage.completion_tokens_details.reasoning_tokens > 0

    async def work(client):
        async with client.chat.completions.stream(**options) as stream:
            return (await stream.get_final_completion()).choices[0].message

    assert len(asynchronous(talk, work).tool_calls) == 2


@pytest.mark.parametrize("cut", [TEXT[:12], CALL[:-25]])
def test_chat_says_that_an_answer_was_cut_off(talk, hermes, cut):
    hermes.says(cut, reason="length")
    options = {"model": "tiny", "messages": ASK, "response_format": Answer, "tools": [TOOL]}
    with pytest.raises(openai.LengthFinishReasonError):
        talk.chat.completions.parse(**options)
    with pytest.raises(openai.LengthFinishReasonError), talk.chat.completions.stream(**options) as stream:
        stream.until_done()


def test_responses_parse_an_answer(talk, hermes):
    hermes.says(TEXT)
    options = {"model": "tiny", "input": "Hello", "text_format": Answer}
    assert talk.responses.parse(**options).output_parsed == MEANT
    with talk.responses.stream(**options) as stream:
        events = list(stream)
        assert stream.get_final_response().output_parsed == MEANT
    done = next(event for event in events if event.type == "response.output_text.done")
    assert (done.text, done.parsed) == (TEXT, MEANT)

    async def work(client):
        parsed = await client.responses.parse(**options)
        async with client.responses.stream(**options) as stream:
            return parsed, await stream.get_final_response()

    assert [response.output_parsed for response in asynchronous(talk, work)] == [MEANT, MEANT]


def test_responses_parse_calls(talk, hermes):
    hermes.says(THOUGHT_AND_CALLS)
    options = {"model": "tiny", "input": "Hello", "tools": [FLAT]}
    parsed = [item for item in talk.responses.parse(**options).output if item.type == "function_call"]
    assert [call.arguments for call in parsed] == ['{"city": "Paris"}', '{"city": "Rome"}']
    with talk.responses.stream(**options) as stream:
        events = list(stream)
        final = stream.get_final_response()
    deltas = [event for event in events if event.type == "response.function_call_arguments.delta"]
    assert len(deltas) > 6
    assert deltas[-1].snapshot == '{"city": "Rome"}'
    done = [event for event in events if event.type == "response.function_call_arguments.done"]
    assert [event.arguments for event in done] == [call.arguments for call in parsed]
    assert [item.type for item in final.output] == ["reasoning", "message", "function_call", "function_call"]


@pytest.mark.parametrize("mode", ["auto", "required"])
def test_responses_take_allowed_tools(talk, hermes, mode):
    hermes.says(THOUGHT_AND_CALLS)
    other = FLAT | {"name": "get_time"}
    choice = {"type": "allowed_tools", "mode": mode, "tools": [{"type": "function", "name": "get_weather"}]}
    answer = talk.responses.create(model="tiny", input="Hello", tools=[FLAT, other], tool_choice=choice)
    assert answer.tool_choice.model_dump() == choice
    assert "get_time" not in hermes.prompt
    assert (hermes.requests[-1].sampling.structured_outputs is not None) == (mode == "required")


def test_a_call_that_is_cut_off_is_an_incomplete_item(talk, hermes):
    hermes.says(CALL.partition('is"}')[0], reason="length")
    answer = talk.responses.create(model="tiny", input="Hello", tools=[FLAT])
    assert answer.status == "incomplete"
    assert [(item.type, item.status) for item in answer.output] == [("function_call", "incomplete")]
    assert answer.output[0].arguments == '{"city": "Par'
