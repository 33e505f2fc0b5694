"""The real `openai` client against a real server."""

import asyncio
import json

import httpx
import openai
import pytest

from rondo.server.answers import prompts
from support.engines import slowly
from support.waiting import until

CHAT = [{"role": "user", "content": "abc def"}]
JSON = {"Content-Type": "application/json"}


@pytest.fixture
def client(running) -> openai.OpenAI:
    return openai.OpenAI(base_url=running.url + "/v1", api_key="none", max_retries=0)


def test_models(client):
    assert [model.id for model in client.models.list()] == ["tiny"]
    assert client.models.retrieve("tiny").object == "model"
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("other")


def test_chat_and_its_stream_say_the_same(client):
    options = {"model": "tiny", "messages": CHAT, "max_tokens": 20, "seed": 1, "temperature": 1.2}
    whole = client.chat.completions.create(**options)
    assert whole.choices[0].message.role == "assistant"
    assert whole.usage.completion_tokens <= 20
    assert whole.usage.prompt_tokens + whole.usage.completion_tokens == whole.usage.total_tokens
    events = list(
        client.chat.completions.create(**options, stream=True, stream_options={"include_usage": True})
    )
    assert events[0].choices[0].delta.role == "assistant"
    text = "".join(event.choices[0].delta.content or "" for event in events if event.choices)
    assert text == whole.choices[0].message.content
    assert events[-1].choices == []
    assert events[-1].usage.completion_tokens == whole.usage.completion_tokens
    assert all(event.usage is None for event in events[:-1])
    assert [e.choices[0].finish_reason for e in events if e.choices][-1] == whole.choices[0].finish_reason
    assert whole.choices[0].weight_version == 0


def test_seeds_reproduce_and_differ(client):
    def say(seed):
        answer = client.completions.create(
            model="tiny", prompt="abc", max_tokens=24, seed=seed, temperature=1.5
        )
        return answer.choices[0].text

    assert say(1) == say(1) != say(2)


def test_chat_logprobs(client):
    answer = client.chat.completions.create(
        model="tiny", messages=CHAT, max_tokens=6, logprobs=True, top_logprobs=3, temperature=0
    )
    content = answer.choices[0].logprobs.content
    assert len(content) == answer.usage.completion_tokens
    for token in content:
        assert len(token.top_logprobs) == 3
        assert token.top_logprobs[0].token == token.token
        assert token.top_logprobs[0].logprob == pytest.approx(token.logprob)
        assert bytes(token.bytes).decode("utf-8", "replace") == token.token
    streamed = client.chat.completions.create(
        model="tiny", messages=CHAT, max_tokens=6, logprobs=True, top_logprobs=3, temperature=0, stream=True
    )
    seen = [token for e in streamed if e.choices[0].logprobs for token in e.choices[0].logprobs.content]
    assert [token.logprob for token in seen] == [token.logprob for token in content]


def test_completion_logprobs_and_offsets(client):
    choice = client.completions.create(
        model="tiny", prompt="abc", max_tokens=8, logprobs=2, temperature=0, extra_body={"ignore_eos": True}
    ).choices[0]
    assert len(choice.logprobs.tokens) == len(choice.logprobs.token_logprobs) == 8
    assert choice.logprobs.text_offset[0] == 0
    assert all(2 <= len(top) <= 3 for top in choice.logprobs.top_logprobs)


@pytest.mark.parametrize("stop", [None, ["@@@@@@@@"]])
def test_text_offsets_of_a_stream_are_those_of_the_whole(client, stop):
    """A stop string holds text back, but the tokens' own lengths go on."""
    options = {"model": "tiny", "prompt": ["abc", "b"], "max_tokens": 12, "logprobs": 0, "seed": 3, "n": 2}
    options |= {"extra_body": {"ignore_eos": True}, "temperature": 1.5, "stop": stop}
    whole = {c.index: c.logprobs.text_offset for c in client.completions.create(**options).choices}
    streamed: dict[int, list[int]] = {index: [] for index in whole}
    for event in client.completions.create(**options, stream=True):
        for choice in event.choices:
            streamed[choice.index] += choice.logprobs.text_offset if choice.logprobs else []
    assert streamed == whole
    assert [len(offsets) for offsets in whole.values()] == [12] * 4


def test_prompts_as_text_ids_and_lists(client):
    def say(prompt, **options):
        return client.completions.create(model="tiny", prompt=prompt, max_tokens=5, temperature=0, **options)

    ids = [70, 71, 72]
    both = say([ids, [80, 81]])
    assert [choice.index for choice in both.choices] == [0, 1]
    assert both.choices[0].text == say(ids).choices[0].text
    assert both.usage.prompt_tokens == 5
    assert [choice.index for choice in say(["ab", "cd"], n=2, seed=1).choices] == [0, 1, 2, 3]
    assert say("abc", echo=True).choices[0].text == "abc" + say("abc").choices[0].text
    events = list(say(["ab", "cd"], stream=True))
    texts = {i: "".join(e.choices[0].text for e in events if e.choices[0].index == i) for i in (0, 1)}
    assert texts == {0: say("ab").choices[0].text, 1: say("cd").choices[0].text}


def test_stop_strings_cut_whole_and_streamed_answers_alike(client):
    options = {"model": "tiny", "prompt": "abc", "max_tokens": 40, "temperature": 0}
    full = client.completions.create(**options, extra_body={"ignore_eos": True}).choices[0].text
    stop = full[10:13]
    at = full.index(stop)
    cut = client.completions.create(**options, stop=[stop], extra_body={"ignore_eos": True}).choices[0]
    assert (cut.text, cut.finish_reason) == (full[:at], "stop")
    kept = client.completions.create(
        **options, stop=stop, extra_body={"ignore_eos": True, "include_stop_str_in_output": True}
    )
    assert kept.choices[0].text == full[: at + len(stop)]
    events = client.completions.create(**options, stop=[stop], extra_body={"ignore_eos": True}, stream=True)
    assert "".join(event.choices[0].text for event in events) == full[:at]


def test_concurrent_streams_are_not_mixed_up(running):
    async def main():
        async with openai.AsyncOpenAI(base_url=running.url + "/v1", api_key="none", max_retries=0) as client:

            async def say(i, stream):
                options = {
                    "model": "tiny",
                    "prompt": f"a{i}",
                    "max_tokens": 20,
                    "seed": i,
                    "temperature": 1.5,
                }
                if not stream:
                    return (await client.completions.create(**options)).choices[0].text
                events = await client.completions.create(**options, stream=True)
                return "".join([event.choices[0].text async for event in events])

            alone = [await say(i, False) for i in range(20)]
            together = await asyncio.gather(*(say(i, True) for i in range(20)))
            assert together == alone
            assert len(set(alone)) > 15

    asyncio.run(main())


@pytest.mark.parametrize(
    ("change", "param", "says"),
    [
        ({"temperatur": 1}, "temperatur", "Did you mean temperature"),
        ({"functions": []}, "functions", "not supported"),
        ({"temperature": "hot"}, "temperature", "hot"),
        ({"temperature": -1}, "temperature", "between"),
        ({"max_tokens": 0}, "max_tokens", "0"),
        ({"messages": []}, "messages", "list"),
        ({"messages": "hi"}, "messages", "list"),
        ({"messages": [{"content": "x"}]}, "messages", "role"),
        ({"stop": 5}, "stop", "list of texts"),
        ({"top_logprobs": 3}, "top_logprobs", "logprobs"),
        ({"logprobs": True, "top_logprobs": 30}, "top_logprobs", "30"),
        ({"response_format": {"type": "xml"}}, "response_format", "json_object"),
        ({"response_format": {"type": "json_schema"}}, "response_format", "json_schema"),
        ({"response_format": {"type": "json_object", "triggers": []}}, "response_format", "nothing else"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": 5}}}},
            "response_format",
            "cannot be enforced",
        ),
        ({"guided_regex": "["}, "guided_regex", "unclosed"),
        ({"guided_grammar": "start: x"}, "guided_grammar", "unknown name"),
        ({"guided_json": "{", "model": "tiny"}, "guided_json", "JSON"),
        ({"guided_choice": []}, "guided_choice", "empty"),
        ({"guided_choice": ["a"], "guided_regex": "a"}, "guided_choice", "exclude"),
        ({"guided_whitespace_pattern": " "}, "guided_whitespace_pattern", "guided_json"),
        ({"structured_outputs": {}}, "structured_outputs", "exactly one"),
        ({"structured_outputs": {"regexp": "a"}}, "structured_outputs.regexp", "Did you mean regex"),
        (
            {"stream_options": {"include_usag": True}, "stream": True},
            "stream_options.include_usag",
            "include_usage",
        ),
        ({"stream_options": {"include_usage": True}}, "stream_options", "stream"),
        ({"messages": [{"role": "user", "content": "abc " * 600}]}, "messages", "512"),
        (
            {"messages": [{"role": "user", "content": "abc " * 6000}]},
            "messages",
            "resulted in more than 512 tokens",
        ),
        ({"messages": [*CHAT, {"role": "user"}]}, "messages", "message 1 (user) has no content"),
        ({"guided_grammar": "root ::= root"}, "guided_grammar", "no text obeys it"),
        *(
            (
                {"response_format": {"type": "structural_tag", "triggers": ["<"]} | tag},
                "response_format",
                says,
            )
            for tag, says in (
                ({"structures": [{"begin": 1, "schema": {}, "end": ">"}]}, "structures, triggers"),
                ({"structures": []}, "must be {"),
                ({"structures": [{"begin": "(", "schema": {}, "end": ")"}]}, "a trigger for each beginning"),
                ({"structures": [{"begin": "<", "schema": {}, "end": ">"}], "triggers": [""]}, "must be {"),
            )
        ),
        ({"logit_bias": {"100000": 1}}, "logit_bias", "vocabulary"),
        ({"n": 0}, "n", "between"),
        ({"store": True}, "store", "not supported"),
        ({"priority": 1}, "priority", "allow_priority"),
        *(
            ({"chat_template_kwargs": {name: value}}, "chat_template_kwargs", name)
            for name, value in {
                "self": 1,
                "messages": [],
                "tools": [],
                "documents": [],
                "template_name": "x",
                "add_generation_prompt": True,
                "continue_final_message": "x",
            }.items()
        ),
    ],
)
def test_bad_requests_name_the_field(running, change, param, says):
    body = {"model": "tiny", "messages": CHAT, **change}
    for stream in {False, body.get("stream", "stream_options" not in body)}:
        answer = httpx.post(
            running.url + "/v1/chat/completions", json=body | ({"stream": True} if stream else {}), timeout=60
        )
        assert answer.status_code == 400, answer.text
        error = answer.json()["error"]
        assert set(error) == {"message", "type", "param", "code"}
        assert error["param"] == param
        assert says in error["message"]


@pytest.mark.parametrize("stream", [False, True])
def test_a_prompt_that_the_engine_refuses_is_the_messages(running, stream):
    body = {"model": "tiny", "messages": [{"role": "user", "content": "a 1 " * 400}], "stream": stream}
    answer = httpx.post(running.url + "/v1/chat/completions", json=body)
    assert answer.status_code == 400, answer.text
    error = answer.json()["error"]
    assert (error["param"], error["code"]) == ("messages", "context_length_exceeded")
    assert error["message"].startswith(
        "This model's maximum context length is 512 tokens. However, your messages resulted in "
    )


def test_one_prompt_is_looked_at_once(running, monkeypatch):
    """By the engine, and not on the event loop too; of several, none is begun where one is wrong."""
    looked, check = [], prompts.check_prompt
    monkeypatch.setattr(prompts, "check_prompt", lambda ids, *rest: looked.append(ids) or check(ids, *rest))
    for route, body in (
        ("chat/completions", {"messages": CHAT}),
        ("responses", {"input": "a"}),
        ("completions", {"prompt": [70, 71]}),
    ):
        asked = {"model": "tiny", "max_output_tokens" if route == "responses" else "max_tokens": 1, **body}
        assert httpx.post(f"{running.url}/v1/{route}", json=asked).status_code == 200
    assert looked == []
    httpx.post(
        running.url + "/v1/completions", json={"model": "tiny", "prompt": [[70], [71]], "max_tokens": 1}
    )
    assert looked == [[70], [71]]


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"prompt": []}, "at least one prompt"),
        ({"prompt": [[]]}, "empty"),
        ({"prompt": [[1], [999999]]}, "prompt 1 has a token id outside the vocabulary"),
        ({"prompt": [[999999]]}, "the prompt has a token id outside the vocabulary"),
        ({"prompt": ["a"] * 3000}, "2048"),
    ],
)
def test_bad_prompts_name_the_field(running, change, says):
    body = {"model": "tiny", "max_tokens": 1, **change}
    for stream in (False, True):
        answer = httpx.post(running.url + "/v1/completions", json=body | {"stream": stream})
        assert answer.status_code == 400, answer.text
        assert answer.json()["error"]["param"] == "prompt"
        assert says in answer.json()["error"]["message"]


def test_whoever_speaks_no_http_is_answered_too(running):
    """Other servers tell an application of their own beginning and end."""
    heard = []

    async def send(message):
        heard.append(message["type"])

    async def talk():
        words = iter(["lifespan.startup", "lifespan.shutdown"])

        async def receive():
            return {"type": next(words)}

        await running.server.config.app({"type": "lifespan", "state": {}}, receive, send)

    asyncio.run(talk())
    assert heard == ["lifespan.startup.complete", "lifespan.shutdown.complete"]


def test_other_errors_have_the_same_shape(running):
    url = running.url + "/v1/chat/completions"
    for answer, status in (
        (httpx.post(url, content=b"{nope", headers=JSON), 400),
        (httpx.post(url, content=b"[1]", headers=JSON), 400),
        (httpx.post(url, json={"model": "gpt", "messages": CHAT}), 404),
        (httpx.post(url, json={"messages": CHAT}), 400),
        (httpx.get(url), 405),
        (httpx.get(running.url + "/nothing"), 404),
    ):
        assert answer.status_code == status
        assert set(answer.json()["error"]) == {"message", "type", "param", "code"}


def test_fields_that_clients_send_by_default_are_accepted(client):
    client.chat.completions.create(
        model="tiny",
        messages=[{"role": "user", "content": [{"type": "text", "text": "abc"}], "name": "me"}],
        max_completion_tokens=3,
        n=1,
        user="me",
        prompt_cache_key="x",
        safety_identifier="y",
        store=False,
        metadata={"a": "b"},
        response_format={"type": "text"},
        logit_bias={"70": -100},
        presence_penalty=0.5,
        frequency_penalty=0.5,
        extra_body={"top_k": 5, "min_p": 0.1, "repetition_penalty": 1.1},
    )


@pytest.mark.parametrize("stream", [True, False])
def test_leaving_aborts_the_request(running, monkeypatch, stream):
    runner, metrics = running.engine.core.runner, running.engine.metrics
    before = metrics.finished["abort"]
    monkeypatch.setattr(runner, "run", slowly(runner.run, 0.005))

    async def main():
        body = {
            "model": "tiny",
            "prompt": "abc",
            "max_tokens": 400,
            "ignore_eos": True,
            "n": 4,
            "stream": stream,
        }
        async with httpx.AsyncClient(timeout=30) as client:
            task = asyncio.create_task(client.post(running.url + "/v1/completions", json=body))
            await until(lambda: len(running.engine.core.scheduler.running) == 4)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        await until(lambda: metrics.finished["abort"] == before + 4)
        assert not running.engine.core.has_work
        assert running.engine.core.pool.used == 0

    asyncio.run(main())


def test_health_and_metrics(running, client):
    client.completions.create(model="tiny", prompt="abc", max_tokens=3)
    assert httpx.get(running.url + "/health").status_code == 200
    assert httpx.get(running.url + "/ready").status_code == 200
    assert httpx.get(running.url + "/version").json()["weight_version"] == 0
    assert httpx.get(running.url + "/load").json()["server_load"] == 0
    text = httpx.get(running.url + "/metrics").text
    for name in (
        "time_to_first_token_seconds_bucket",
        "inter_token_latency_seconds_sum",
        "e2e_request_latency_seconds_count",
        "request_queue_time_seconds_count",
        "num_requests_running",
        "num_requests_waiting",
        "prompt_tokens_total",
        "generation_tokens_total",
        'request_success_total{engine="0",finished_reason="length",model_name="tiny"}',
        "prefix_cache_queries_total",
        "prefix_cache_hits_total",
        "kv_cache_usage_perc",
    ):
        assert f"rondo:{name}" in text


def test_sse_is_framed_as_the_specification_says(running):
    body = {"model": "tiny", "prompt": "abc", "max_tokens": 3, "stream": True}
    with httpx.stream("POST", running.url + "/v1/completions", json=body) as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        events = "".join(answer.iter_text()).split("\n\n")
    assert events[-2:] == ["data: [DONE]", ""]
    assert all(
        json.loads(event.removeprefix("data: "))["object"] == "text_completion" for event in events[:-2]
    )


def test_a_prompt_is_scored_and_echoed(client):
    """As evaluation harnesses ask for it: no token of an answer, the prompt's log-probabilities."""
    options = {"model": "tiny", "prompt": "abc def gh", "logprobs": 2, "temperature": 0}
    alone = client.completions.create(**options, echo=True, max_tokens=0)
    choice = alone.choices[0]
    assert choice.text == "abc def gh"
    assert alone.usage.completion_tokens == 0
    assert len(choice.logprobs.tokens) == alone.usage.prompt_tokens
    assert "".join(choice.logprobs.tokens) == "abc def gh"
    assert choice.logprobs.token_logprobs[0] is None
    assert all(value < 0 for value in choice.logprobs.token_logprobs[1:])
    longer = client.completions.create(**options, echo=True, max_tokens=5, extra_body={"ignore_eos": True})
    both = longer.choices[0].logprobs
    assert (
        len(both.tokens)
        == len(both.token_logprobs)
        == len(both.top_logprobs)
        == alone.usage.prompt_tokens + 5
    )
    assert both.token_logprobs[1 : alone.usage.prompt_tokens] == pytest.approx(
        choice.logprobs.token_logprobs[1:], abs=1e-5
    )
    assert both.text_offset == sorted(both.text_offset)
    streamed = client.completions.create(
        **options, echo=True, max_tokens=5, extra_body={"ignore_eos": True}, stream=True
    )
    parts = [event.choices[0].logprobs.tokens for event in streamed if event.choices[0].logprobs]
    assert [token for part in parts for token in part] == both.tokens


def test_prompt_logprobs_have_vllm_s_shape(running):
    for route, asked in (("completions", {"prompt": "abc def"}), ("chat/completions", {"messages": CHAT})):
        answer = httpx.post(
            f"{running.url}/v1/{route}",
            json={"model": "tiny", "max_tokens": 1, "prompt_logprobs": 3, **asked},
        ).json()
        first, *others = answer.get("prompt_logprobs") or answer["choices"][0]["prompt_logprobs"]
        assert first is None
        assert len(others) == answer["usage"]["prompt_tokens"] - 1
        for entry in others:
            assert len(entry) in (3, 4)
            assert {1, 2, 3} <= {each["rank"] for each in entry.values()}
            assert set(next(iter(entry.values()))) == {"logprob", "rank", "decoded_token"}


@pytest.mark.parametrize("stream", [False, True])
def test_of_several_prompts_the_one_that_is_too_long_is_named_before_any_begins(running, stream):
    for wrong, says in (([70] * 600, "prompt 1 resulted in 600 tokens"), ([], "prompt 1 is empty")):
        body = {"model": "tiny", "prompt": [[70], wrong], "max_tokens": 4, "stream": stream}
        answer = httpx.post(running.url + "/v1/completions", json=body)
        assert answer.status_code == 400
        assert says in answer.json()["error"]["message"]


def test_a_message_cannot_be_continued_and_another_begun(running):
    said = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    body = {"model": "tiny", "messages": said, "continue_final_message": True, "max_tokens": 1}
    both = httpx.post(running.url + "/v1/chat/completions", json=body | {"add_generation_prompt": True})
    assert (both.status_code, both.json()["error"]["param"]) == (400, "continue_final_message")
    assert httpx.post(running.url + "/v1/chat/completions", json=body).status_code == 200


def test_a_number_of_hundreds_of_digits_leaves_the_engine_alone(running):
    raw = b'{"model": "tiny", "prompt": "abc", "max_tokens": 1' + b"0" * 400 + b"}"
    headers = {"Content-Type": "application/json"}
    answer = httpx.post(running.url + "/v1/completions", content=raw, headers=headers)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "max_tokens")
    assert httpx.get(running.url + "/ping").status_code == 200
    assert httpx.post(running.url + "/ping").status_code == 200
