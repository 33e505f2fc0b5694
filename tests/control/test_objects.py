"""Files, uploads, conversations and responses on each database."""

import json
from pathlib import Path

import msgspec
import pytest
import sqlalchemy as sa

from rondo.base.errors import Conflict, InvalidRequest, NotFound, Overloaded, StorageError
from rondo.client.protocol.item import ItemResult, result_text
from rondo.control.config import FilesConfig, ResponsesConfig
from rondo.control.objects.blobs import Blobs
from rondo.control.objects.conversations import Conversations
from rondo.control.objects.files import Files, StoredFile, new_file
from rondo.control.objects.items import items_of
from rondo.control.objects.pages import PageQuery
from rondo.control.objects.responses import Responses, StoredResponse
from rondo.control.objects.uploads import Uploads
from rondo.control.queue.leases import Leases
from rondo.control.queue.queue import Queue
from rondo.control.queue.work import Finished, New
from rondo.control.store.pending import failed
from rondo.control.store.store import Store


def put(files: Files, owner: str = "a", size: int = 10, name: str = "x") -> StoredFile:
    blob = files.blobs.new()
    blob.write(b"x" * size)
    return files.add(new_file(owner, name, "user_data", size, None, files.config), blob).result()


def test_files_have_owners_pages_and_quotas(store: Store, tmp_path: Path) -> None:
    files = Files(store, Blobs(tmp_path / "files"), FilesConfig(owner_bytes=50))
    made = [put(files).id for _ in range(5)]
    with pytest.raises(Overloaded, match=r"50 of 50 bytes"):
        put(files)
    assert not list((tmp_path / "files" / "incoming").iterdir())
    other = put(files, "b").id
    pages, after = [], None
    while True:
        page = files.page("a", PageQuery(after, 2)).result()
        pages += [each.id for each in page.data]
        if not page.has_more:
            break
        after = pages[-1]
    assert pages == made[::-1]
    assert files.page(None, PageQuery(limit=1)).result().data[0].id == other
    with pytest.raises(NotFound):
        files.get(other, "a").result()
    files.delete(made[0], "a").result()
    assert len(list((tmp_path / "files" / "kept").rglob("file-*"))) == 5
    assert files.left("a").result() == 10


def test_two_completions_of_an_upload_at_once_make_one_file(store: Store, tmp_path: Path) -> None:
    files = Files(store, Blobs(tmp_path / "files"), FilesConfig())
    uploads = Uploads(store, files.blobs, files)
    upload = uploads.create("a", "x", "user_data", 6, None).result()
    parts = []
    for content in (b"abc", b"def"):
        blob = files.blobs.new()
        blob.write(content)
        parts.append(uploads.add_part(upload, blob).result().id)
    both = [uploads.complete(upload.id, "a", parts, None) for _ in range(2)]
    assert len({each.result()[1].id for each in both}) == 1
    (file,) = files.page("a", PageQuery()).result().data
    assert files.blobs.kept(file.id).read_bytes() == b"abcdef"
    assert len(list((tmp_path / "files" / "kept").rglob("file-*"))) == 1
    with pytest.raises(InvalidRequest, match="completed"):
        uploads.cancel(upload.id, "a").result()


def test_conversations_keep_the_order_of_their_items(store: Store) -> None:
    conversations = Conversations(store)
    made = conversations.create("a", {"k": "v"}, items_of("zero")).result()
    for number in range(5):
        conversations.add(
            made.id, "a", items_of([{"role": "user", "content": str(number), "id": f"m{number}"}])
        ).result()
    page = conversations.items(made.id, "a", PageQuery("m2", 10, "asc")).result()
    assert [item["id"] for item in page.data] == ["m3", "m4"]
    with pytest.raises(Conflict, match="m1"):
        conversations.add(made.id, "a", items_of([{"role": "user", "content": "x", "id": "m1"}])).result()
    with pytest.raises(NotFound):
        conversations.items(made.id, "b", PageQuery()).result()
    conversations.delete_item(made.id, "a", "m1").result()
    assert len(conversations.items(made.id, None, PageQuery(limit=10)).result().data) == 5
    conversations.delete(made.id, "a").result()
    with pytest.raises(NotFound):
        conversations.get(made.id, "a").result()


def test_the_context_of_a_response_is_that_of_its_chain(store: Store) -> None:
    responses = Responses(store, Queue(store), ResponsesConfig())
    previous = None
    for number in range(4):
        body = f'{{"output": [{{"type": "message", "id": "out{number}"}}]}}'
        stored = StoredResponse(f"r{number}", "a", "completed", body, f'[{{"id": "in{number}"}}]', previous)
        responses.keep(stored).result()
        previous = stored.id
    context = responses.context("a", "r2", None).result()
    assert [item["id"] for item in context] == ["in0", "out0", "in1", "out1", "in2", "out2"]
    with pytest.raises(InvalidRequest, match="not found"):
        responses.context("b", "r2", None).result()
    responses.delete("r1", "a").result()
    with pytest.raises(InvalidRequest, match="r1"):
        responses.context("a", "r3", None).result()
    assert responses.get("r3", "a").result().id == "r3"


def test_a_context_is_bounded_before_it_is_loaded(store: Store) -> None:
    responses, conversations = Responses(store, Queue(store), ResponsesConfig()), Conversations(store)
    long = items_of("x" * 1000)
    made = conversations.create("a", {}, [*long, *items_of("y" * 1000)]).result()
    assert len(responses.context("a", None, made.id, 10_000).result()) == 2
    with pytest.raises(InvalidRequest, match=r"gateway\.max_body_bytes") as refused:
        responses.context("a", None, made.id, 2000).result()
    assert refused.value.param == "conversation"
    previous = None
    for number in range(3):
        stored = StoredResponse(f"r{number}", "a", "completed", "{}", json.dumps(long), previous)
        responses.keep(stored).result()
        previous = stored.id
    assert len(responses.context("a", "r1", None, 2500).result()) == 2
    with pytest.raises(InvalidRequest, match=r"gateway\.max_body_bytes"):
        responses.context("a", "r2", None, 2500).result()


def background(responses: Responses, id: str, item: str, conversation: str | None = None) -> str:
    """A response whose request has ended."""
    item_json = json.dumps([{"type": "message", "id": item}])
    stored = StoredResponse(id, "a", "queued", '{"background": true}', item_json, None, conversation)
    queued = responses.begin(stored, New("m", "{}")).result()
    (leased,) = Leases(responses.store).take("w", ["m"], 10).result()
    result = ItemResult(200, "req", msgspec.Raw(b'{"status": "completed", "output": []}'))
    Leases(responses.store).finish([Finished(leased.id, leased.lease, result_text(result))]).result()
    return str(queued.queued_as)


def test_a_background_response_whose_item_is_in_the_conversation_is_stored(store: Store) -> None:
    responses, conversations = Responses(store, Queue(store), ResponsesConfig()), Conversations(store)
    made = conversations.create("a", {}, items_of([{"role": "user", "content": "x", "id": "m1"}])).result()
    background(responses, "r0", "m1", made.id)
    background(responses, "r1", "m1", made.id)
    background(responses, "r2", "m2", made.id)
    assert responses.get("r0", "a").result().state == "completed"
    responses.sweep().result()
    states = store.read(lambda db: db.execute(sa.text("SELECT state FROM responses")).scalars().all())
    assert states.result() == ["completed"] * 3
    page = conversations.items(made.id, "a", PageQuery(limit=10, order="asc")).result()
    assert [item["id"] for item in page.data] == ["m1", "m2"]


def test_a_malformed_result_does_not_stop_the_sweep(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rondo.control.objects.responses.AT_A_TIME", 1)
    responses = Responses(store, Queue(store), ResponsesConfig())
    broken = background(responses, "r0", "m0")
    background(responses, "r1", "m1")
    wrong = sa.text("UPDATE results SET result = 'x' WHERE id = (SELECT r.id FROM requests r JOIN groups g"
    " ON g.id = r.group_id WHERE g.name = :name)")  # fmt: skip
    store.write(lambda db: db.execute(wrong, {"name": broken})).result()
    responses.sweep().result()
    assert responses.get("r1", "a").result().queued_as is None
    text = sa.text("SELECT state FROM responses WHERE id = 'r1'")
    assert store.read(lambda db: db.execute(text).scalar()).result() == "completed"


def test_many_cancellations_at_once_end(store: Store) -> None:
    responses = Responses(store, Queue(store), ResponsesConfig())
    stored = [StoredResponse(f"r{n}", "a", "queued", '{"background": true}', "[]") for n in range(20)]
    for each in [responses.begin(one, New("m", "{}")) for one in stored]:
        each.result(60)
    cancelled = [responses.cancel(each.id, "a") for each in stored]
    assert {each.result(60).state for each in cancelled} == {"cancelled"}


def test_a_response_that_cannot_be_stored_leaves_no_request(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    responses = Responses(store, Queue(store), ResponsesConfig())
    monkeypatch.setattr(responses, "keep", lambda stored: failed(StorageError("the disk is full")))
    with pytest.raises(StorageError):
        responses.begin(StoredResponse("r", "a", "queued", "{}", "[]"), New("m", "{}")).result()
    assert responses.queue.counts().result() == {("m", "cancelled"): 1}
