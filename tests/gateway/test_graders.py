"""OpenAI's `graders/run`: flags of failures, and graders of unmodified requests."""

from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from gateway.stub import RunningGateway, Stub, gateway_of, served

CHECK = {"type": "string_check", "name": "same", "operation": "eq", "reference": "Lima"}
TEXT = CHECK | {"input": "{{sample.output_text}}"}
JUDGE = {"type": "score_model", "name": "judge", "model": "toy", "input": [{"role": "user", "content": "?"}]}
LABELS = {**JUDGE, "type": "label_model", "labels": ["good", "bad"], "passing_labels": ["good"]}
RAISES = {"type": "python", "name": "raises", "source": "def grade(sample, item):\n    return 1 / 0"}
COSINE = {**TEXT, "type": "text_similarity", "evaluation_metric": "cosine"}
del COSINE["operation"]


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningGateway]:
    folder = tmp_path_factory.mktemp("graders")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RONDO_HOME", str(folder / "home"))
        with served(Stub(["toy"])) as stub, gateway_of([stub.url], folder) as running:
            yield running


def post(gateway: RunningGateway, path: str, **body: Any) -> httpx.Response:
    url = f"{gateway.url}/v1/fine_tuning/alpha/graders/{path}"
    return httpx.post(url, json=body, timeout=120)


def multi(**graders: Any) -> dict[str, Any]:
    return {"type": "multi", "name": "all", "graders": graders, "calculate_output": " + ".join(graders)}


@pytest.mark.parametrize(
    ("grader", "sample", "flags"),
    [
        (TEXT, "Lima", set()),
        (CHECK | {"input": "{{item.answer}}"}, "Lima", {"invalid_variable_error"}),
        (CHECK | {"input": "{{sample.output_json.city}}"}, "no JSON", {"sample_parse_error"}),
        (CHECK | {"input": "{{sample.output_json.city}}"}, "{}", {"invalid_variable_error"}),
        (JUDGE, "Lima", {"model_grader_parse_error"}),
        (RAISES, "Lima", {"python_grader_runtime_error"}),
        (
            multi(text=TEXT, code=RAISES, label=LABELS),
            "Lima",
            {"python_grader_runtime_error", "model_grader_parse_error"},
        ),
        (multi(text=CHECK | {"input": "{{item.answer}}"}), "Lima", {"invalid_variable_error"}),
        (
            {"type": "multi", "graders": {"a": TEXT}, "calculate_output": "1 / (a - 1)"},
            "Lima",
            {"other_error"},
        ),
    ],
)
def test_failures_have_openais_flags(
    gateway: RunningGateway, grader: dict[str, Any], sample: str, flags: set[str]
) -> None:
    answer = post(gateway, "run", grader=grader, model_sample=sample, item={"question": "?"})
    assert answer.status_code == 200, answer.text
    errors = answer.json()["metadata"]["errors"]
    assert {name for name, value in errors.items() if value is True} == flags
    assert answer.json()["reward"] == float(not flags)
    if "python_grader_runtime_error" in flags:
        assert "ZeroDivisionError" in errors["python_grader_runtime_error_details"]


def test_a_python_grader_may_name_an_image_of_openais(gateway: RunningGateway) -> None:
    grader = {**RAISES, "source": "def grade(sample, item): return 0.5", "image_tag": "2025-05-08"}
    assert post(gateway, "run", grader=grader, model_sample="x").json()["reward"] == 0.5


def test_cosine_uses_the_embedding_model_of_the_gateway(
    gateway: RunningGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused = post(gateway, "validate", grader=multi(near=COSINE))
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "grader.graders.near.model")
    assert "gateway.jobs.embedding_model" in refused.text
    training = gateway.gateway.training
    jobs = training.config.jobs.model_copy(update={"embedding_model": "toy"})
    monkeypatch.setattr(training, "config", training.config.model_copy(update={"jobs": jobs}))
    validated = post(gateway, "validate", grader=multi(near=COSINE))
    assert validated.json()["grader"]["graders"]["near"]["model"] == "toy"
    file = {"file": ("a.jsonl", b'{"prompt": "a", "answer": "b"}\n{"prompt": "c", "answer": "d"}\n')}
    id = httpx.post(f"{gateway.url}/v1/files", files=file, data={"purpose": "fine-tune"}).json()["id"]
    method = {"type": "reinforcement", "reinforcement": {"grader": COSINE}}
    body = {"model": "toy", "training_file": id, "method": method}
    job = httpx.post(f"{gateway.url}/v1/fine_tuning/jobs", json=body, timeout=60)
    assert job.json()["method"]["reinforcement"]["grader"]["model"] == "toy", job.text
    httpx.post(f"{gateway.url}/v1/fine_tuning/jobs/{job.json()['id']}/cancel", timeout=60)
    source = {"type": "custom", "item_schema": {"type": "object"}}
    asked = {"data_source_config": source, "testing_criteria": [COSINE]}
    made = httpx.post(f"{gateway.url}/v1/evals", json=asked, timeout=60)
    assert made.json()["testing_criteria"][0]["model"] == "toy", made.text
