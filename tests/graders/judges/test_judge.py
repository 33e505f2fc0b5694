"""Models that judge, behind an endpoint that does what a test tells it to."""

import asyncio
import json
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from graders.garbage import GARBAGE
from rondo.base.errors import ConfigError, InvalidRequest, Unavailable
from rondo.base.telemetry.metrics import render
from rondo.graders import Sample, Score, guarded
from rondo.graders.registry import grader_of

Reply = Callable[[dict[str, Any]], tuple[int, Any]]


@dataclass
class Fake:
    reply: Reply = lambda body: (200, verdict('{"steps": [], "result": 0.5}'))
    asked: list[dict[str, Any]] = field(default_factory=list)
    keys: list[str | None] = field(default_factory=list)
    at_once: int = 0
    most_at_once: int = 0
    delay_s: float = 0.0
    url: str = ""


def verdict(content: Any, **message: Any) -> dict[str, Any]:
    usage = {"prompt_tokens": 100, "completion_tokens": 20, "total_tokens": 120}
    return {"choices": [{"message": {"role": "assistant", "content": content, **message}}], "usage": usage}


@pytest.fixture
def fake() -> Iterator[Fake]:
    fake, lock = Fake(), threading.Lock()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            with lock:
                fake.asked.append({"path": self.path, **body})
                fake.keys.append(self.headers.get("Authorization"))
                fake.at_once += 1
                fake.most_at_once = max(fake.most_at_once, fake.at_once)
                status, answer = fake.reply(body)
            time.sleep(fake.delay_s)
            with lock:
                fake.at_once -= 1
            data = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
            try:
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)
            except OSError:
                self.close_connection = True  # who asked has gone

        def log_message(self, *args: Any) -> None:
            """Says nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    fake.url = f"http://127.0.0.1:{server.server_address[1]}"
    yield fake
    server.shutdown()
    server.server_close()
    thread.join(5)


def spec(fake: Fake, **fields: Any) -> dict[str, Any]:
    endpoint = {"base_url": fake.url, "backoff_s": 0.01, **fields.pop("endpoint", {})}
    messages = [
        {"role": "developer", "content": "Judge."},
        {
            "role": "user",
            "content": [{"type": "input_text", "text": "{{ sample.output_text }} or {{ item.answer }}?"}],
        },
    ]
    made = {"type": "score_model", "name": "judge", "model": "big", "input": messages, "endpoint": endpoint}
    return made | fields


def score(spec: dict[str, Any], completion: str = "Lima") -> Score:
    return asyncio.run(grader_of(spec).score(Sample("", completion, metadata={"item": {"answer": "Lima"}})))


def test_what_a_judge_is_asked_and_answers(fake: Fake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JUDGE_KEY", "secret")
    sampling = {
        "temperature": 0,
        "top_p": None,
        "max_completions_tokens": 50,
        "reasoning_effort": "low",
        "seed": 7,
    }
    found = score(
        spec(fake, sampling_params=sampling, endpoint={"key_env": "JUDGE_KEY"}), "{{ item.answer }}"
    )
    assert found == Score("ok", 0.5, {}, "120 tokens of big")
    (asked,) = fake.asked
    assert asked["path"] == "/v1/chat/completions"
    assert asked["messages"] == [
        {"role": "system", "content": "Judge."},
        {"role": "user", "content": "{{ item.answer }} or Lima?"},
    ]
    assert asked["response_format"]["json_schema"]["schema"]["required"] == ["steps", "result"]
    options = {
        name: asked[name] for name in ("temperature", "max_completion_tokens", "reasoning_effort", "seed")
    }
    assert options == {"temperature": 0, "max_completion_tokens": 50, "reasoning_effort": "low", "seed": 7}
    assert "top_p" not in asked
    assert fake.keys == ["Bearer secret"]


@pytest.mark.parametrize(
    ("content", "total"),
    [
        ('{"result": 1}', 1.0),
        ('```json\n{"steps": [{"description": "d", "conclusion": "c"}], "result": 0.25}\n```', 0.25),
        ('{"result": "0.75"}', 0.75),
        (" 0.5\n", 0.5),
    ],
)
def test_verdicts(fake: Fake, content: str, total: float) -> None:
    fake.reply = lambda body: (200, verdict(content))
    assert score(spec(fake)).total == total


NO_VERDICTS = (
    *GARBAGE,
    '{"result": null}',
    '{"result": true}',
    '{"result": NaN}',
    '{"result": Infinity}',
    '{"result": 1e999}',
    '{"result": [1]}',
    '{"results": 1}',
    "[1]",
    "2",
    "-0.01",
    "I would say 1.",
    '{"result": 1.0000001}',
)


def test_garbage_of_a_judge_is_an_error_and_no_zero(fake: Fake) -> None:
    for content in NO_VERDICTS:
        fake.reply = lambda body, content=content: (200, verdict(content))  # type: ignore[misc]
        found = score(spec(fake, garbage_retries=0))
        assert (found.outcome, found.total, found.parts) == ("error", 0.0, {}), content[:50]
        assert "no verdict" in found.detail


@pytest.mark.parametrize(
    "answer",
    [
        {},
        {"choices": []},
        {"choices": [{}]},
        {"choices": [{"message": None}]},
        {"choices": None},
        verdict(None),
        verdict(7),
    ],
)
def test_an_answer_without_a_message_is_an_error(fake: Fake, answer: Any) -> None:
    fake.reply = lambda body: (200, answer)
    assert score(spec(fake, garbage_retries=0)).outcome == "error"


def test_a_refusal_is_told(fake: Fake) -> None:
    fake.reply = lambda body: (200, verdict(None, refusal="I will not"))
    assert "it refused: I will not" in score(spec(fake, garbage_retries=0)).detail


def test_a_judge_may_be_asked_again(fake: Fake) -> None:
    said = iter(["what?", '{"result": 1}'])
    fake.reply = lambda body: (200, verdict(next(said)))
    found = score(spec(fake))
    assert (found.total, found.detail) == (1.0, "240 tokens of big")


def test_an_endpoint_that_knows_no_forms_is_told_in_words(fake: Fake) -> None:
    fake.reply = lambda body: (200, verdict('{"result": 3}'))
    assert score(spec(fake, structured=False, range=[1, 5])).total == 3
    (asked,) = fake.asked
    assert "response_format" not in asked
    assert "a number from 1 to 5" in asked["messages"][-1]["content"]


def test_a_busy_or_broken_endpoint_is_asked_again_and_a_wrong_request_is_not(fake: Fake) -> None:
    replies = iter([(429, {"error": {"message": "busy"}}), (500, b"<html>"), (200, verdict('{"result": 1}'))])
    fake.reply = lambda body: next(replies)
    assert score(spec(fake)).total == 1
    assert len(fake.asked) == 3
    fake.reply = lambda body: (400, {"error": {"message": "no such field", "param": "seed"}})
    with pytest.raises(InvalidRequest, match="no such field"):
        score(spec(fake))
    assert len(fake.asked) == 4


def test_an_endpoint_that_stays_broken(fake: Fake) -> None:
    fake.reply = lambda body: (503, {"error": {"message": "loading"}})
    with pytest.raises(Unavailable, match="loading"):
        score(spec(fake, endpoint={"retries": 2}))
    assert len(fake.asked) == 3
    with pytest.raises(Unavailable, match="Is it running"):
        score(spec(fake, endpoint={"base_url": "http://127.0.0.1:9", "retries": 1}))
    assert (
        asyncio.run(guarded(grader_of(spec(fake, endpoint={"retries": 0})), 20).score(Sample("", ""))).outcome
        == "error"
    )


def test_a_silent_endpoint_is_a_timeout(fake: Fake) -> None:
    fake.delay_s = 1.0
    found = score(spec(fake, endpoint={"timeout_s": 0.1, "retries": 1}))
    assert found.outcome == "timeout"
    assert len(fake.asked) == 2


def test_few_requests_are_under_way_at_once_and_their_queue_is_not_their_time(fake: Fake) -> None:
    fake.delay_s = 0.1
    grader = guarded(grader_of(spec(fake, endpoint={"concurrency": 2})), 5.0)

    async def many() -> list[Score]:
        return list(
            await asyncio.gather(*(grader.score(Sample("", "x", metadata={"answer": ""})) for _ in range(12)))
        )

    for _ in range(2):  # in another event loop too
        assert {each.outcome for each in asyncio.run(many())} == {"ok"}
    assert fake.most_at_once == 2


def test_tokens_and_money_are_counted(fake: Fake) -> None:
    score(spec(fake, model="dear", endpoint={"prices": [2.0, 10.0]}))
    text = render().decode()
    assert 'rondo:judge_tokens_total{kind="read",model="dear"} 100.0' in text
    assert 'rondo:judge_tokens_total{kind="written",model="dear"} 20.0' in text
    assert 'rondo:judge_cost_total{model="dear"} 0.0004' in text
    assert 'rondo:judge_requests_total{model="dear",outcome="ok"} 1.0' in text


def test_labels(fake: Fake) -> None:
    made = spec(fake, type="label_model", labels=["good", "fair", "poor"], passing_labels=["good", "fair"])
    for content, total in (
        ('{"steps": [], "label": "fair"}', 1.0),
        ("good", 1.0),
        ('{"label": "poor"}', 0.0),
    ):
        fake.reply = lambda body, content=content: (200, verdict(content))  # type: ignore[misc]
        assert score(made).total == total
    fake.reply = lambda body: (200, verdict('{"label": "bad"}'))
    assert score(made).outcome == "error"


def test_cosine_asks_for_embeddings(fake: Fake) -> None:
    vectors = {"Lima": [3.0, 4.0], "lima": [4.0, 3.0]}

    def embed(body: dict[str, Any]) -> tuple[int, Any]:
        data = [{"index": at, "embedding": vectors[text]} for at, text in enumerate(body["input"])]
        return 200, {"data": data[::-1]}

    fake.reply = embed
    made = {
        "type": "text_similarity",
        "input": "{{ sample.output_text }}",
        "reference": "Lima",
        "evaluation_metric": "cosine",
        "model": "vectors",
        "endpoint": {"base_url": fake.url + "/v1", "retries": 0},
    }
    assert score(made, "lima").total == pytest.approx(0.96)
    assert score(made, "").total == 0
    assert fake.asked[0]["path"] == "/v1/embeddings"
    fake.reply = lambda body: (200, {"data": [{"index": 0, "embedding": [1.0]}]})
    with pytest.raises(Unavailable, match="1 embeddings for 2 texts"):
        score(made, "lima")


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"range": [1, 0]}, "grader.range"),
        ({"range": [0]}, "grader.range"),
        ({"input": []}, "grader.input"),
        ({"input": [{"role": "judge", "content": "x"}]}, "grader.input[0].role"),
        ({"input": [{"role": "user", "content": "{{ x }}"}]}, "grader.input[0]"),
        (
            {"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]},
            "grader.input[0]",
        ),
        ({"model": ""}, "grader.model"),
        ({"sampling_params": {"top_k": 3}}, "grader.sampling_params.top_k"),
        ({"endpoint": {"timeout": 3}}, "grader.endpoint.timeout"),
        ({"endpoint": {"retries": -1}}, "grader.endpoint.retries"),
        ({"type": "label_model", "labels": ["a"], "passing_labels": ["b"]}, "grader.passing_labels"),
    ],
)
def test_a_judge_s_mistakes_are_named(fake: Fake, fields: dict[str, Any], param: str) -> None:
    with pytest.raises(ConfigError) as wrong:
        score(spec(fake) | fields)
    assert wrong.value.param == param
