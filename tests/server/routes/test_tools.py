"""Tools and reasoning, as the `openai` client asks for them and reads them, from models of each family."""

import asyncio
import json
from typing import get_args

import httpx
import openai
import pydantic
import pytest
import transformers

from rondo.data.batching.packing import Document, pack
from rondo.models import load, save
from rondo.server.answers.thoughts import ReadTexts
from rondo.server.config import ServerConfig
from rondo.text.parsing.dialect import REASONING_PARSERS, TOOL_PARSERS
from rondo.text.tokenizer import Tokenizer
from rondo.train.config import OptimConfig
from rondo.train.learner.learner import Learner
from rondo.train.losses.sums import cross_entropy
from server.families import CALLS, FAMILIES, HERMES, NOW, TOOLS
from server.playback import Playback
from server.running import make_model, start

ASK = [{"role": "user", "content": "How is the weather in Paris?"}]
REASONING = {"hermes": "The weather.", "deepseek_v3": "The weather.", "openai": "The weather."}
CONTENT = {"hermes": "I look.", "mistral": "I look."}


@pytest.fixture(scope="module", params=FAMILIES)
def family(request, tmp_path_factory):
    """(its name, its folder, a server of it)."""
    folder = tmp_path_factory.mktemp(request.param) / "tiny"
    make_model(folder, *FAMILIES[request.param], context=2048)
    for running in start(folder, config=ServerConfig(port=0, served_model_name="tiny")):
        yield request.param, folder, running


@pytest.fixture
def played(family, monkeypatch) -> Playback:
    _, folder, running = family
    player = Playback(Tokenizer.load(folder))
    monkeypatch.setattr(running.engine, "generate", player.generate)
    return player


@pytest.fixture
def client(family) -> openai.OpenAI:
    return openai.OpenAI(base_url=family[2].url + "/v1", api_key="none", max_retries=0)


def called(message) -> list[tuple[str, dict]]:
    return [(c.function.name, json.loads(c.function.arguments)) for c in message.tool_calls or []]


def test_a_call_whole_streamed_and_async(family, client, played):
    name = family[0]
    played.says(CALLS[name])
    options = {"model": "tiny", "messages": ASK, "tools": TOOLS}
    whole = client.chat.completions.create(**options).choices[0]
    assert whole.finish_reason == "tool_calls"
    assert called(whole.message) == [("get_weather", {"city": "Paris"})]
    assert whole.message.content == CONTENT.get(name)
    assert getattr(whole.message, "reasoning_content", None) == REASONING.get(name)
    assert getattr(whole.message, "reasoning", None) == REASONING.get(name)

    with client.chat.completions.stream(**options) as stream:
        done = [event for event in stream if event.type == "tool_calls.function.arguments.done"]
        streamed = stream.get_final_completion().choices[0]
    assert [(event.name, json.loads(event.arguments)) for event in done] == called(whole.message)
    assert (streamed.finish_reason, called(streamed.message)) == ("tool_calls", called(whole.message))
    assert (streamed.message.content or None) == whole.message.content

    async def asynchronous():
        async with openai.AsyncOpenAI(base_url=client.base_url, api_key="none", max_retries=0) as other:
            events = await other.chat.completions.create(**options, stream=True)
            return [event async for event in events]

    deltas = [event.choices[0].delta for event in asyncio.run(asynchronous())]
    calls = [call for delta in deltas for call in delta.tool_calls or []]
    first, *more = calls
    assert (first.index, first.type, first.function.name) == (0, "function", "get_weather")
    assert first.id
    assert first.function.arguments == ""
    assert all((call.index, call.id, call.function.name) == (0, None, None) for call in more)
    assert len(more) > 3
    assert "".join(call.function.arguments for call in more) == whole.message.tool_calls[0].function.arguments
    assert all(len(delta.tool_calls or []) <= 1 for delta in deltas)
    assert "".join(getattr(delta, "reasoning_content", None) or "" for delta in deltas) == REASONING.get(
        name, ""
    )


def test_a_result_goes_back_as_transformers_would_write_it(family, client, played):
    name, folder, _ = family
    played.says(CALLS[name])
    options = {"model": "tiny", "tools": TOOLS}
    answer = client.chat.completions.create(**options, messages=ASK).choices[0].message
    shown = transformers.AutoTokenizer.from_pretrained(folder)
    assert played.prompt == shown.apply_chat_template(
        ASK, tools=TOOLS, add_generation_prompt=True, tokenize=False
    )
    result = {"role": "tool", "tool_call_id": answer.tool_calls[0].id, "content": "sunny"}
    said = answer.model_dump(exclude_none=True)
    played.says("Sunny." if name != "deepseek_v3" else "Fine.</think>Sunny.")
    final = client.chat.completions.create(**options, messages=[*ASK, said, result]).choices[0]
    assert (final.finish_reason, final.message.content) == ("stop", "Sunny.")

    call = {"name": "get_weather", "arguments": {"city": "Paris"}}
    if name == "deepseek_v3":
        call["arguments"] = json.dumps(call["arguments"])  # Its template joins them to a text.
    as_it_takes = {
        "role": "assistant",
        "content": None if name == "deepseek_v3" else answer.content or "",
        "tool_calls": [{"id": answer.tool_calls[0].id, "type": "function", "function": call}],
    }
    if name in REASONING:
        as_it_takes["thinking" if name == "openai" else "reasoning_content"] = REASONING[name]
    expected = shown.apply_chat_template(
        [*ASK, as_it_takes, result], tools=TOOLS, add_generation_prompt=True, tokenize=False
    )
    assert played.prompt == expected
    assert "sunny" in expected


def test_what_is_cut_off(family, client, played):
    """In its arguments: it is a call with as much of them as is there. Before them: it is content."""
    name = family[0]
    options = {"model": "tiny", "messages": ASK, "tools": TOOLS}
    played.says(CALLS[name].partition("Paris")[0], reason="length")
    choice = client.chat.completions.create(**options).choices[0]
    assert choice.finish_reason == "length"
    assert choice.message.tool_calls[0].function.name == "get_weather"
    assert choice.message.tool_calls[0].function.arguments == '{"city": "'
    events = list(client.chat.completions.create(**options, stream=True))
    calls = [call for event in events for call in event.choices[0].delta.tool_calls or []]
    assert "".join(call.function.arguments for call in calls) == '{"city": "'
    assert events[-1].choices[0].finish_reason == "length"

    played.says(
        CALLS[name].partition("weather")[0] if name != "hermes" else '<tool_call>{"na', reason="length"
    )
    cut = client.chat.completions.create(**options).choices[0]
    assert (cut.finish_reason, cut.message.tool_calls) == ("length", None)
    events = client.chat.completions.create(**options, stream=True)
    assert ("".join(e.choices[0].delta.content or "" for e in events) or None) == cut.message.content


def test_none_shows_no_tools_and_reads_no_calls(family, client, played):
    played.says(CALLS[family[0]])
    options = {"model": "tiny", "messages": ASK, "tools": TOOLS, "tool_choice": "none"}
    message = client.chat.completions.create(**options).choices[0].message
    assert message.tool_calls is None
    assert "get_weather" not in played.prompt
    assert message.content


# From here on: one family is enough.


TWO = (
    '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris"}}\n</tool_call>\n'
    '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>'
)


def test_calls_have_numbers_and_ids_of_their_own(talk, hermes):
    hermes.says(TWO, "Neither.")
    options = {"model": "tiny", "messages": ASK, "tools": TOOLS, "n": 2}
    both, neither = talk.chat.completions.create(**options).choices
    assert [name for name, _ in called(both.message)] == ["get_weather", "now"]
    assert len({call.id for call in both.message.tool_calls}) == 2
    assert (neither.finish_reason, neither.message.content, neither.message.tool_calls) == (
        "stop",
        "Neither.",
        None,
    )
    seen = {}
    for event in talk.chat.completions.create(**options, stream=True):
        for choice in event.choices:
            for call in choice.delta.tool_calls or []:
                if call.function.name is not None:
                    seen[(choice.index, call.index)] = call.function.name
    assert seen == {(0, 0): "get_weather", (0, 1): "now"}


def test_without_parallel_calls_the_first_is_the_only_one(talk, hermes):
    hermes.says(TWO)
    options = {"model": "tiny", "messages": ASK, "tools": TOOLS, "parallel_tool_calls": False}
    assert called(talk.chat.completions.create(**options).choices[0].message) == [
        ("get_weather", {"city": "Paris"})
    ]
    with talk.chat.completions.stream(**options) as stream:
        message = stream.get_final_completion().choices[0].message
    assert called(message) == [("get_weather", {"city": "Paris"})]


@pytest.mark.parametrize("mode", ["auto", "required"])
def test_only_allowed_tools_are_shown_and_demanded(talk, hermes, mode):
    hermes.says('<tool_call>{"name": "now", "arguments": {}}</tool_call>')
    allowed = {"mode": mode, "tools": [{"type": "function", "function": {"name": "now"}}]}
    choice = {"type": "allowed_tools", "allowed_tools": allowed}
    options = {"model": "tiny", "messages": ASK, "tools": TOOLS, "tool_choice": choice}
    assert called(talk.chat.completions.create(**options).choices[0].message) == [("now", {})]
    assert ("get_weather" in hermes.prompt, "now" in hermes.prompt) == (False, True)
    form = hermes.requests[-1].sampling.structured_outputs
    if mode == "auto":
        assert form is None
    else:
        assert "now" in form.grammar
        assert "get_weather" not in form.grammar


def test_tokens_of_reasoning_are_counted_as_they_come(talk, hermes):
    thought = "abc def gab"
    hermes.says(f"<think>{thought}</think>Yes.", "No.")
    options = {"model": "tiny", "messages": ASK}
    usage = talk.chat.completions.create(**options).usage
    within = len(hermes.tokenizer.encode(thought, add_special=False))
    # The markers are several tokens here, of which those before the last may yet be reasoning.
    marker = len(hermes.tokenizer.encode("</think>", add_special=False))
    assert within <= usage.completion_tokens_details.reasoning_tokens <= within + marker - 1
    options["stream_options"] = {"include_usage": True}
    *_, last = talk.chat.completions.create(**options, stream=True)
    assert last.usage == usage
    both = talk.chat.completions.create(model="tiny", messages=ASK, n=2).usage
    assert both.completion_tokens_details == usage.completion_tokens_details
    plain = {"extra_body": {"include_reasoning": False}}
    assert talk.chat.completions.create(model="tiny", messages=ASK, **plain).usage == usage
    hermes.says("Yes.")
    assert (
        talk.chat.completions.create(
            model="tiny", messages=ASK
        ).usage.completion_tokens_details.reasoning_tokens
        == 0
    )


def test_the_clients_own_parsing_of_functions(talk, hermes):
    class get_weather(pydantic.BaseModel):
        city: str

    hermes.says(CALLS["hermes"])
    tool = openai.pydantic_function_tool(get_weather)
    message = talk.chat.completions.parse(model="tiny", messages=ASK, tools=[tool]).choices[0].message
    assert message.tool_calls[0].function.parsed_arguments == get_weather(city="Paris")


def test_reasoning_without_tools(talk, hermes):
    hermes.says("<think>\nHm.\n</think>\n\nYes.")
    options = {"model": "tiny", "messages": ASK}
    message = talk.chat.completions.create(**options).choices[0].message
    assert (message.content, message.reasoning_content) == ("Yes.", "Hm.")
    message = (
        talk.chat.completions.create(**options, extra_body={"include_reasoning": False}).choices[0].message
    )
    assert (message.content, getattr(message, "reasoning_content", None)) == ("Yes.", None)
    hermes.says("Yes.")
    options["extra_body"] = {"chat_template_kwargs": {"enable_thinking": False}}
    assert talk.chat.completions.create(**options).choices[0].message.content == "Yes."
    assert hermes.prompt.endswith("<think>\n\n</think>\n\n")


def test_an_answer_that_goes_on_in_the_middle_of_reasoning(talk, hermes):
    hermes.says(" more.\n</think>\n\nYes.")
    message = (
        talk.chat.completions.create(
            model="tiny",
            messages=[*ASK, {"role": "assistant", "content": "<think>\nNot much"}],
            extra_body={"continue_final_message": True, "add_generation_prompt": False},
        )
        .choices[0]
        .message
    )
    assert (message.reasoning_content, message.content) == ("more.", "Yes.")


@pytest.mark.parametrize(
    ("change", "param", "says"),
    [
        ({"tools": [{"type": "web_search"}]}, "tools", "function"),
        ({"tools": [{"type": "function", "function": {}}]}, "tools", "name"),
        ({"tools": [{"type": "custom", "custom": {"name": "code"}}]}, "tools", "custom"),
        (
            {"tool_choice": {"type": "custom", "custom": {"name": "x"}}, "tools": [NOW]},
            "tool_choice",
            "custom",
        ),
        (
            {
                "tool_choice": {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": []}},
                "tools": [NOW],
            },
            "tool_choice",
            "allowed_tools",
        ),
        (
            {
                "tool_choice": {
                    "type": "allowed_tools",
                    "allowed_tools": {
                        "mode": "auto",
                        "tools": [{"type": "function", "function": {"name": "then"}}],
                    },
                },
                "tools": [NOW],
            },
            "tool_choice",
            "then",
        ),
        ({"tool_choice": "required"}, "tool_choice", "tools"),
        ({"tool_choice": "always", "tools": [NOW]}, "tool_choice", "always"),
        (
            {"tool_choice": {"type": "function", "function": {"name": "then"}}, "tools": [NOW]},
            "tool_choice",
            "then",
        ),
        ({"guided_regex": "a", "tools": [NOW]}, "guided_regex", "tools"),
        ({"reasoning_effort": "high"}, "reasoning_effort", "template"),
        ({"functions": []}, "functions", "not supported"),
        (
            {
                "messages": [
                    {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "{"}}]}
                ]
            },
            "messages",
            "JSON object",
        ),
        ({"messages": [{"role": "assistant", "tool_calls": [{"id": "1"}]}]}, "messages", "function"),
        ({"messages": [{"role": "assistant", "tool_calls": 5}]}, "messages", "list"),
    ],
)
def test_bad_requests_name_the_field(served, change, param, says):
    body = {"model": "tiny", "messages": ASK, **change}
    answer = httpx.post(served[1].url + "/v1/chat/completions", json=body)
    assert answer.status_code == 400, answer.text
    assert answer.json()["error"]["param"] == param
    assert says in answer.json()["error"]["message"]


def test_tokenize_counts_the_tools(talk, served, hermes):
    hermes.says("Yes.")
    talk.chat.completions.create(model="tiny", messages=ASK, tools=TOOLS)
    counted = httpx.post(served[1].url + "/tokenize", json={"messages": ASK, "tools": TOOLS}).json()
    assert counted["tokens"] == list(hermes.requests[-1].prompt_ids)


def test_the_settings_know_every_parser():
    fields = ServerConfig.model_fields
    assert get_args(fields["tool_call_parser"].annotation) == TOOL_PARSERS
    assert get_args(fields["reasoning_parser"].annotation) == REASONING_PARSERS


@pytest.mark.parametrize(
    ("template", "config", "says"),
    [
        ("{% for m in messages %}{{ m.content }}{% endfor %}", {}, "does not show them"),
        ("{{ tools }}{% for m in messages %}{{ m.content }}{% endfor %}", {}, "--tool-call-parser"),
        (HERMES, {"tool_call_parser": "none"}, "--tool-call-parser"),
        (HERMES, {"auto_tool_choice": False}, "auto_tool_choice"),
    ],
)
def test_models_that_take_no_tools_say_so(tmp_path, template, config, says):
    folder = make_model(tmp_path / "tiny", template)
    for running in start(folder, config=ServerConfig(port=0, served_model_name="tiny", **config)):
        body = {"model": "tiny", "messages": ASK, "tools": TOOLS}
        answer = httpx.post(running.url + "/v1/chat/completions", json=body)
        assert answer.status_code == 400
        assert says in answer.json()["error"]["message"]
        assert httpx.post(
            running.url + "/v1/chat/completions", json=body | {"tools": [], "max_tokens": 2}
        ).is_success


def test_a_model_that_has_learned_a_call_makes_it(tmp_path):
    """Through the real engine: the special tokens that the parser needs reach it, others do not."""
    folder = make_model(tmp_path / "tiny", *FAMILIES["mistral"])
    tokenizer = Tokenizer.load(folder)
    prompt = tokenizer.apply_chat(ASK, [NOW])
    answer = tokenizer.encode("Wait.[INST][TOOL_CALLS]now[ARGS]{}</s>", add_special=False)
    model = load(folder)
    learner = Learner(model, OptimConfig(lr=0.01))
    document = Document(prompt + answer, [0.0] * len(prompt) + [1.0] * len(answer))
    rows = pack([document], 512)
    for _ in range(150):
        if learner.forward_backward(rows, cross_entropy)["loss"] < 0.02:
            break
        learner.optim_step()
    save(model, tmp_path / "taught")
    tokenizer.save(tmp_path / "taught")
    for running in start(tmp_path / "taught", config=ServerConfig(port=0, served_model_name="tiny")):
        client = openai.OpenAI(base_url=running.url + "/v1", api_key="none", max_retries=0)
        options = {"model": "tiny", "messages": ASK, "tools": [NOW], "temperature": 0}
        choice = client.chat.completions.create(**options).choices[0]
        assert (choice.message.content, called(choice.message)) == ("Wait.", [("now", {})])
        assert len(choice.message.tool_calls[0].id) == 9
        with client.chat.completions.stream(**options) as stream:
            assert called(stream.get_final_completion().choices[0].message) == [("now", {})]


def test_reasoning_is_counted_only_for_who_hears_of_it_and_while_there_is_any(talk, hermes, monkeypatch):
    fed, text = [], ReadTexts.__getitem__
    options = {"model": "tiny", "messages": ASK}
    thought, answer = "<think>abc def</think>", "gab " * 50
    hermes.says(thought + answer)
    monkeypatch.setattr(
        ReadTexts, "__getitem__", lambda *given: (fed.append(given[1]), text(*given))[1], raising=False
    )
    list(talk.chat.completions.create(**options, stream=True))
    assert not fed
    talk.chat.completions.create(**options)
    assert 0 < len(fed) <= len(hermes.tokenizer.encode(thought + "gab", add_special=False))
    assert hermes.requests[-1].whole
