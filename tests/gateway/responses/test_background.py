"""Responses in the background, which the durable queue executes."""

from typing import Any

import openai
import pytest
import sqlalchemy as sa

from gateway.queue_worker import worker
from gateway.responses.engine import response_to
from gateway.stub import RunningGateway
from support.waiting import wait_until


def answered(item: dict[str, Any]) -> tuple[int, dict[str, Any]]:
    if item["body"]["input"] == "bad":
        return 400, {"error": {"message": "no such field"}}
    return 200, response_to(item["body"])


def test_a_response_in_the_background(gateway: RunningGateway, client: openai.OpenAI) -> None:
    conversation = client.conversations.create()
    made = client.responses.create(model="m", input="one", background=True, conversation=conversation.id)
    assert (made.status, made.background) == ("queued", True)
    with pytest.raises(openai.ConflictError, match="has not ended"):
        client.responses.create(model="m", input="two", previous_response_id=made.id)
    with worker(gateway.store, ["m"], answered):
        wait_until(lambda: client.responses.retrieve(made.id).status == "completed")
    done = client.responses.retrieve(made.id)
    assert (done.id, done.output_text, done.background) == (made.id, "1: one", True)
    assert (
        client.responses.create(model="m", input="two", previous_response_id=made.id).output_text == "3: two"
    )
    assert len(client.conversations.items.list(conversation.id).data) == 2
    events = list(client.responses.retrieve(made.id, stream=True))
    assert events[-1].type == "response.completed"


def test_a_refused_response_in_the_background_has_failed(
    gateway: RunningGateway, client: openai.OpenAI
) -> None:
    made = client.responses.create(model="m", input="bad", background=True)
    with worker(gateway.store, ["m"], answered):
        wait_until(lambda: client.responses.retrieve(made.id).status == "failed")
    error = client.responses.retrieve(made.id).error
    assert error is not None
    assert error.message == "no such field"


def test_a_response_in_the_background_is_cancelled(gateway: RunningGateway, client: openai.OpenAI) -> None:
    made = client.responses.create(model="m", input="one", background=True)
    assert client.responses.cancel(made.id).status == "cancelled"
    assert client.responses.retrieve(made.id).status == "cancelled"
    assert client.responses.cancel(made.id).status == "cancelled"
    other = client.responses.create(model="m", input="one")
    with pytest.raises(openai.BadRequestError, match="background"):
        client.responses.cancel(other.id)
    dropped = client.responses.create(model="m", input="one", background=True)
    client.responses.delete(dropped.id)
    with worker(gateway.store, ["m"], answered) as done:
        last = client.responses.create(model="m", input="last", background=True)
        wait_until(lambda: client.responses.retrieve(last.id).status == "completed")
    assert len(done) == 1


def test_a_sweep_stores_background_results_and_deletes_expired_responses(
    gateway: RunningGateway, client: openai.OpenAI
) -> None:
    responses = gateway.gateway.objects.responses
    made = client.responses.create(model="m", input="one", background=True)
    kept = client.responses.create(model="m", input="one")
    with worker(gateway.store, ["m"], answered) as done:
        wait_until(lambda: done)
    wait_until(lambda: responses.queue.counts().result().get(("m", "leased"), 0) == 0)
    responses.sweep().result()
    text = sa.text("SELECT state FROM responses WHERE id = :id")
    found = gateway.store.read(lambda db: db.execute(text, {"id": made.id}).scalar()).result()
    assert found == "completed"
    expire = sa.text("UPDATE responses SET expires = 1 WHERE id = :id")
    gateway.store.write(lambda db: db.execute(expire, {"id": kept.id})).result()
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(kept.id)
    assert responses.sweep().result() == 1
