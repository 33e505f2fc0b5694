"""OpenAI's Evals API with the client of OpenAI: criteria, data sources, counts, cancellation, and crashes."""

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest

from gateway.queue_worker import worker
from gateway.stub import RunningGateway, Stub, client_of, gateway_of, served
from rondo.control.key import Rights
from support.waiting import wait_until

STRING = {
    "type": "string_check",
    "name": "match",
    "input": "{{ sample.output_text }}",
    "reference": "{{ item.answer }}",
    "operation": "eq",
}
SIMILAR = {
    "type": "text_similarity",
    "name": "near",
    "input": "{{ sample.output_text }}",
    "reference": "{{ item.answer }}",
    "evaluation_metric": "fuzzy_match",
    "pass_threshold": 0.4,
}
JUDGE = {
    "type": "score_model",
    "name": "judge",
    "model": "judge",
    "input": [{"role": "user", "content": "Is {{ sample.output_text }} right?"}],
    "range": [0, 10],
    "pass_threshold": 7,
}
CONFIG: Any = {
    "type": "custom",
    "item_schema": {
        "type": "object",
        "properties": {"question": {"type": "string"}},
        "required": ["question"],
    },
    "include_sample_schema": True,
}
TEMPLATE = {"type": "template", "template": [{"role": "user", "content": "{{ item.question }}"}]}
ENDED = ("completed", "failed", "canceled")


class Judging(Stub):
    """An engine whose model `judge` returns 9 for each answer."""

    async def _answer(self, request: Any) -> Any:
        from starlette.responses import JSONResponse

        body = json.loads(await request.body())
        self.requests.append({"headers": dict(request.headers), "body": body})
        message = {"role": "assistant", "content": json.dumps({"steps": [], "result": 9})}
        usage = {"prompt_tokens": 30, "completion_tokens": 4, "total_tokens": 34}
        own = {
            "id": f"chatcmpl-{len(self.requests)}",
            "object": "chat.completion",
            "created": int(time.time()),
        }
        choices = [{"index": 0, "message": message, "finish_reason": "stop"}]
        return JSONResponse({**own, "model": body["model"], "choices": choices, "usage": usage})


@pytest.fixture(scope="module")
def engine() -> Iterator[Judging]:
    with served(Judging(models=["m", "judge"])) as stub:
        assert isinstance(stub, Judging)
        yield stub


@pytest.fixture(scope="module")
def gateway(engine: Judging, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningGateway]:
    with gateway_of([engine.url], tmp_path_factory.mktemp("evals"), keys="required") as running:
        yield running


@pytest.fixture
def client(gateway: RunningGateway) -> Iterator[openai.OpenAI]:
    with client_of(gateway) as made:
        yield made


def upper(item: dict[str, Any]) -> tuple[int, dict[str, Any]]:
    """The question in capitals, from either route; an error for the question `bad`."""
    body = item["body"]
    given = body.get("messages") or body["input"]
    text = given if isinstance(given, str) else given[-1]["content"]
    text = text if isinstance(text, str) else text[0]["text"]
    if text == "bad":
        return 400, {"error": {"message": "no such thing"}}
    if "input" in body:
        part = {"type": "output_text", "text": text.upper()}
        usage = {"input_tokens": 3, "output_tokens": 2}
        output = [{"type": "message", "role": "assistant", "content": [part]}]
        return 200, {"model": body["model"], "status": "completed", "output": output, "usage": usage}
    message = {"role": "assistant", "content": text.upper()}
    usage = {"prompt_tokens": 3, "completion_tokens": 2}
    choices = [{"message": message, "finish_reason": "stop"}]
    return 200, {"model": body["model"], "choices": choices, "usage": usage}


def content(*pairs: tuple[str, str]) -> dict[str, Any]:
    items = [{"item": {"question": question, "answer": answer}} for question, answer in pairs]
    return {"type": "file_content", "content": items}


def ended(client: openai.OpenAI, run: Any) -> Any:
    wait_until(lambda: client.evals.runs.retrieve(run.id, eval_id=run.eval_id).status in ENDED)
    return client.evals.runs.retrieve(run.id, eval_id=run.eval_id)


def sampled(source: Any, kind: str = "completions", **fields: Any) -> Any:
    return {"type": kind, "model": "m", "input_messages": TEMPLATE, "source": source, **fields}


def test_a_run_samples_and_grades_each_item(gateway: RunningGateway, client: openai.OpenAI) -> None:
    made = client.evals.create(
        name="capitals", data_source_config=CONFIG, testing_criteria=[STRING, SIMILAR], metadata={"a": "b"}
    )
    assert made.data_source_config.type == "custom"
    assert made.data_source_config.schema_["required"] == ["item", "sample"]
    with worker(gateway.store, ["m"], upper):
        source = sampled(
            content(("a", "A"), ("bcd", "BCX"), ("bad", "A")),
            sampling_params={"max_completion_tokens": 5, "seed": 1},
        )
        run = client.evals.runs.create(made.id, name="first", data_source=source)
        assert (run.object, run.eval_id, run.model, run.name) == ("eval.run", made.id, "m", "first")
        done = ended(client, run)
    assert done.status == "completed", done
    assert done.result_counts.model_dump() == {"total": 3, "passed": 1, "failed": 1, "errored": 1}
    assert {
        each.testing_criteria: (each.passed, each.failed) for each in done.per_testing_criteria_results
    } == {
        "match": (1, 1),
        "near": (2, 0),
    }
    (usage,) = done.per_model_usage
    assert (usage.run_model_name, usage.invocation_count, usage.prompt_tokens) == ("m", 2, 6)
    items = list(client.evals.runs.output_items.list(run.id, eval_id=made.id, limit=2))
    assert [each.status for each in items] == ["pass", "fail", "error"]
    assert [each.datasource_item["question"] for each in items] == ["a", "bcd", "bad"]
    first = client.evals.runs.output_items.retrieve(items[0].id, eval_id=made.id, run_id=run.id)
    assert first.sample.output[0].content == "A"
    assert first.sample.input[0].model_dump(include={"role", "content"}) == {"role": "user", "content": "a"}
    assert [(each.name, each.passed, each.score) for each in first.results] == [
        ("match", True, 1),
        ("near", True, 1),
    ]
    assert "no such thing" in items[2].sample.error.message
    failed = client.evals.runs.output_items.list(run.id, eval_id=made.id, status="fail").data
    assert [each.id for each in failed] == [items[1].id]


def test_samples_of_a_file_are_graded_by_code(client: openai.OpenAI) -> None:
    source = "def grade(sample, item):\n    return len(sample['output_text']) / item['most']"
    python: Any = {"type": "python", "name": "length", "source": source, "pass_threshold": 0.5}
    lines = [{"item": {"question": "q", "most": 4}, "sample": {"output_text": text}} for text in ("abc", "a")]
    data = "".join(json.dumps(each) + "\n" for each in lines).encode()
    file = client.files.create(file=("items.jsonl", data), purpose="evals")
    made = client.evals.create(data_source_config=CONFIG, testing_criteria=[python])
    told: Any = {"type": "jsonl", "source": {"type": "file_id", "id": file.id}}
    done = ended(client, client.evals.runs.create(made.id, data_source=told))
    assert (done.status, done.result_counts.passed, done.result_counts.failed) == ("completed", 1, 1)
    items = client.evals.runs.output_items.list(done.id, eval_id=made.id).data
    assert [each.results[0].score for each in items] == [0.75, 0.25]


def test_judges_use_the_gateways_models_with_the_rights_of_the_key(
    gateway: RunningGateway, engine: Judging, client: openai.OpenAI
) -> None:
    made = client.evals.create(data_source_config=CONFIG, testing_criteria=[JUDGE])
    items = [{"item": {"question": "q"}, "sample": {"output_text": "Lima"}}]
    source: Any = {"type": "jsonl", "source": {"type": "file_content", "content": items}}
    done = ended(client, client.evals.runs.create(made.id, data_source=source))
    assert done.result_counts.passed == 1, done
    (usage,) = done.per_model_usage
    assert (usage.run_model_name, usage.total_tokens) == ("judge", 34)
    assert "Is Lima right?" in str(engine.requests[-1]["body"]["messages"])
    grader: Any = {name: value for name, value in JUDGE.items() if name != "pass_threshold"}
    answer = client.fine_tuning.alpha.graders.run(grader=grader, model_sample="Lima", item={})
    assert (answer.reward, answer.metadata.token_usage) == (9.0, 34)
    with (
        client_of(gateway, Rights(models=("m",))) as limited,
        pytest.raises(openai.PermissionDeniedError, match="may not use the model 'judge'"),
    ):
        limited.evals.create(data_source_config=CONFIG, testing_criteria=[JUDGE])


def test_stored_chat_completions_are_graded_and_sampled_again(
    gateway: RunningGateway, client: openai.OpenAI
) -> None:
    for text, team in (("a", "red"), ("b", "blue"), ("c", "red"), ("d", "red")):
        client.chat.completions.create(
            model="m", messages=[{"role": "user", "content": text}], store=True, metadata={"team": team}
        )
    check = {**STRING, "reference": "9", "operation": "like"}
    config: Any = {"type": "stored_completions", "metadata": {"team": "red"}}
    made = client.evals.create(data_source_config=config, testing_criteria=[check])  # type: ignore[list-item]

    def counts(**source: Any) -> tuple[int, int]:
        data: Any = {"type": "completions", "source": {"type": "stored_completions", **source}}
        done = ended(client, client.evals.runs.create(made.id, data_source=data))
        assert done.result_counts is not None, done.error
        return done.result_counts.total, done.result_counts.passed

    assert counts() == (3, 3)
    assert counts(limit=2, model="m") == (2, 2)
    assert counts(created_after=1, metadata={"team": "blue"}) == (1, 1)
    for nothing in ({"model": "other"}, {"created_before": 1}):
        data: Any = {"type": "completions", "source": {"type": "stored_completions", **nothing}}
        assert ended(client, client.evals.runs.create(made.id, data_source=data)).status == "failed"
    again: Any = {
        "type": "completions",
        "model": "m",
        "input_messages": {"type": "item_reference", "item_reference": "item.input"},
        "source": {"type": "stored_completions"},
    }
    with worker(gateway.store, ["m"], upper):
        run = ended(client, client.evals.runs.create(made.id, data_source=again))
        items = list(client.evals.runs.output_items.list(run.id, eval_id=made.id))
    assert sorted(str(each.sample.output[0].content) for each in items) == ["A", "C", "D"]


def test_responses_are_sampled_and_stored_ones_are_graded(
    gateway: RunningGateway, client: openai.OpenAI
) -> None:
    made = client.evals.create(data_source_config=CONFIG, testing_criteria=[STRING])
    with worker(gateway.store, ["m"], upper):
        run = client.evals.runs.create(
            made.id,
            data_source=sampled(
                content(("a", "A")), "responses", sampling_params={"max_completion_tokens": 5}
            ),
        )
        assert ended(client, run).result_counts.passed == 1
        for text, team in (("one", "red"), ("two", "blue")):
            begun = client.responses.create(
                model="m", input=text, background=True, store=True, metadata={"team": team}
            )
            wait_until(lambda begun=begun: client.responses.retrieve(begun.id).status == "completed")
        check = {**STRING, "reference": "ONE", "name": "one"}
        logs = client.evals.create(
            data_source_config={"type": "logs", "metadata": {"team": "red"}}, testing_criteria=[check]
        )
        stored: Any = {"type": "responses", "source": {"type": "responses"}}
        done = ended(client, client.evals.runs.create(logs.id, data_source=stored))
        assert done.result_counts.model_dump() == {"total": 1, "passed": 1, "failed": 0, "errored": 0}
        again: Any = stored | {
            "model": "m",
            "input_messages": {"type": "item_reference", "item_reference": "item.input"},
        }
        assert ended(client, client.evals.runs.create(logs.id, data_source=again)).result_counts.errored == 0


def test_a_run_is_cancelled_and_deleted(gateway: RunningGateway, client: openai.OpenAI) -> None:
    made = client.evals.create(data_source_config=CONFIG, testing_criteria=[STRING])
    run = client.evals.runs.create(made.id, data_source=sampled(content(("a", "A"))))
    wait_until(lambda: client.evals.runs.retrieve(run.id, eval_id=made.id).status == "in_progress")
    assert client.evals.runs.cancel(run.id, eval_id=made.id).status == "canceled"
    other = client.evals.runs.create(made.id, data_source=sampled(content(("a", "A"))))
    runs = list(client.evals.runs.list(made.id, limit=1))
    assert [each.id for each in runs] == [run.id, other.id]
    assert [each.id for each in client.evals.runs.list(made.id, status="canceled")] == [run.id]
    assert client.evals.runs.delete(run.id, eval_id=made.id).deleted
    renamed = client.evals.update(made.id, name="other")
    assert (renamed.name, renamed.id) == ("other", made.id)
    assert client.evals.list(order="desc", limit=1).data[0].id == made.id
    with client_of(gateway) as stranger, pytest.raises(openai.NotFoundError):
        stranger.evals.retrieve(made.id)
    assert client.evals.delete(made.id).deleted
    with pytest.raises(openai.NotFoundError):
        client.evals.runs.retrieve(other.id, eval_id=made.id)
    queue = gateway.gateway.queue.queue
    wait_until(lambda: not queue.counts().result().get(("m", "queued")))


@pytest.mark.parametrize(
    ("criterion", "source", "message"),
    [
        ({**STRING, "operation": "same"}, {}, "operation"),
        ({**STRING, "input": "{{ sample.text }}"}, {}, "output_text"),
        ({**STRING, "type": "function"}, {}, "sandbox"),
        (STRING, {"type": "completions", "source": {"type": "stored_completions", "limit": 0}}, "limit"),
        (
            STRING,
            {"type": "completions", "model": "m", "source": content(("a", "A"))},
            "input_messages is missing",
        ),
        (STRING, sampled(content(("a", "A")), model="other"), "does not exist"),
    ],
)
def test_wrong_fields_are_named(client: openai.OpenAI, criterion: Any, source: Any, message: str) -> None:
    with pytest.raises(openai.APIStatusError, match=message):
        made = client.evals.create(data_source_config=CONFIG, testing_criteria=[criterion])
        client.evals.runs.create(made.id, data_source=source)


def test_a_run_with_a_wrong_item_fails_with_its_number(client: openai.OpenAI) -> None:
    made = client.evals.create(data_source_config=CONFIG, testing_criteria=[STRING])
    items = [{"item": {"question": "a"}}, {"item": {}}]
    told: Any = {"type": "jsonl", "source": {"type": "file_content", "content": items}}
    done = ended(client, client.evals.runs.create(made.id, data_source=told))
    assert done.status == "failed"
    assert "Item 2" in done.error.message


def test_another_gateway_continues_a_run(tmp_path: Path) -> None:
    items = content(*((f"q{number}", f"Q{number}") for number in range(120)))
    with served(Stub(models=["m"])) as stub:
        with gateway_of([stub.url], tmp_path) as first, worker(first.store, ["m"], upper, at_a_time=7):
            api = openai.OpenAI(base_url=first.url + "/v1", api_key="none", max_retries=0)
            made = api.evals.create(data_source_config=CONFIG, testing_criteria=[STRING])
            run = api.evals.runs.create(made.id, data_source=sampled(items))
            wait_until(lambda: api.evals.runs.retrieve(run.id, eval_id=made.id).result_counts.passed > 0)
        with gateway_of([stub.url], tmp_path) as second, worker(second.store, ["m"], upper):
            api = openai.OpenAI(base_url=second.url + "/v1", api_key="none", max_retries=0)
            done = ended(api, run)
            assert done.result_counts.model_dump() == {"total": 120, "passed": 120, "failed": 0, "errored": 0}
            assert done.per_model_usage[0].invocation_count == 120
