"""Files and uploads with the client of OpenAI, and what a client or a disk may do wrong."""

import asyncio
import hashlib
import io
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from gateway.stub import RunningGateway, client_of, gateway_of
from rondo.control.key import Rights
from support.disk import resize, small_disk
from support.waiting import wait_until


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningGateway]:
    with gateway_of([], tmp_path_factory.mktemp("files"), keys="required") as running:
        yield running


@pytest.fixture
def client(gateway: RunningGateway) -> Iterator[openai.OpenAI]:
    with client_of(gateway) as made:
        yield made


def folder(gateway: RunningGateway) -> Path:
    return gateway.gateway.objects.blobs.folder


def leftovers(gateway: RunningGateway) -> list[Path]:
    return list((folder(gateway) / "incoming").glob("*"))


def test_a_file_is_uploaded_listed_retrieved_downloaded_and_deleted(client: openai.OpenAI) -> None:
    content = b'{"a": 1}\n' * 300_000
    made = client.files.create(file=("a.jsonl", content), purpose="batch")
    assert (made.bytes, made.filename, made.purpose, made.status) == (
        len(content),
        "a.jsonl",
        "batch",
        "processed",
    )
    assert made.expires_at is not None
    assert made.expires_at - made.created_at == 30 * 86400
    assert client.files.wait_for_processing(made.id).id == made.id
    assert client.files.retrieve(made.id) == made
    assert [each.id for each in client.files.list(purpose="batch")] == [made.id]
    assert client.files.content(made.id).read() == content
    with client.files.with_streaming_response.content(made.id) as response:
        assert sum(len(piece) for piece in response.iter_bytes()) == len(content)
    assert client.files.delete(made.id).deleted
    with pytest.raises(openai.NotFoundError):
        client.files.retrieve(made.id)


def test_pages_of_files_in_both_orders(client: openai.OpenAI) -> None:
    made = [client.files.create(file=(f"{number}", b"x"), purpose="user_data").id for number in range(7)]
    made.append(client.files.create(file=b"x", purpose="vision").id)
    assert [each.id for each in client.files.list(limit=3)] == made[::-1]
    assert [each.id for each in client.files.list(limit=2, order="asc")] == made
    assert [each.id for each in client.files.list(limit=2, purpose="user_data")] == made[-2::-1]
    first = client.files.list(limit=3)
    assert (len(first.data), first.has_more) == (3, True)
    with pytest.raises(openai.BadRequestError, match="after"):
        client.files.list(after="file-unknown")


def test_the_asynchronous_client(gateway: RunningGateway) -> None:
    _, text = gateway.gateway.keys.make("test").result()

    async def main() -> None:
        async with openai.AsyncOpenAI(base_url=gateway.url + "/v1", api_key=text) as client:
            files = await asyncio.gather(
                *(client.files.create(file=(f"{n}", b"x" * n), purpose="user_data") for n in range(1, 6))
            )
            assert await client.files.wait_for_processing(files[0].id) == files[0]
            assert {each.id async for each in client.files.list(limit=2)} == {each.id for each in files}
            assert (await client.files.content(files[4].id)).content == b"xxxxx"
            upload = await client.uploads.upload_file_chunked(
                file=b"abcdefg",
                filename="x",
                bytes=7,
                mime_type="text/plain",
                purpose="user_data",
                part_size=2,
            )
            assert upload.file is not None
            assert (await client.files.content(upload.file.id)).content == b"abcdefg"

    asyncio.run(main())


def test_files_of_other_owners_are_unknown_except_to_an_admin(
    gateway: RunningGateway, client: openai.OpenAI
) -> None:
    made = client.files.create(file=b"secret", purpose="user_data")
    with client_of(gateway) as other, client_of(gateway, Rights("admin")) as admin:
        for call in (other.files.retrieve, other.files.content, other.files.delete):
            with pytest.raises(openai.NotFoundError):
                call(made.id)
        assert not other.files.list().data
        assert admin.files.content(made.id).read() == b"secret"
        assert made.id in [each.id for each in admin.files.list()]
    assert client.files.retrieve(made.id) == made


def test_expiry_is_stated_checked_and_applied(gateway: RunningGateway, client: openai.OpenAI) -> None:
    lasting = client.files.create(file=b"x", purpose="fine-tune")
    assert lasting.expires_at is None
    made = client.files.create(
        file=b"x", purpose="user_data", expires_after={"anchor": "created_at", "seconds": 3600}
    )
    assert made.expires_at is not None
    assert made.expires_at - made.created_at == 3600
    for wrong in ({"anchor": "created_at", "seconds": 60}, {"anchor": "now", "seconds": 3600}):
        with pytest.raises(openai.BadRequestError) as refused:
            client.files.create(file=b"x", purpose="user_data", expires_after=wrong)  # type: ignore[arg-type]
        assert "expires_after" in str(refused.value.param)
    _expire(gateway, "files", made.id)
    with pytest.raises(openai.NotFoundError):
        client.files.retrieve(made.id)
    assert made.id not in [each.id for each in client.files.list()]
    path = gateway.gateway.objects.blobs.kept(made.id)
    assert path.exists()
    gateway.gateway.objects.files.sweep().result()
    assert not path.exists()
    assert client.files.content(lasting.id).read() == b"x"


def _expire(gateway: RunningGateway, table: str, id: str) -> None:
    import sqlalchemy as sa

    text = sa.text(f"UPDATE {table} SET expires = 1 WHERE id = :id")
    gateway.store.write(lambda db: db.execute(text, {"id": id})).result()


@pytest.mark.parametrize("name", ["../../etc/passwd", "..", "/", "a\\b\\..", "\x00\n", "ü" * 400, ""])
def test_a_filename_is_never_a_path(gateway: RunningGateway, client: openai.OpenAI, name: str) -> None:
    before = {path for path in folder(gateway).parent.rglob("*") if "files" not in path.parts}
    made = client.files.create(file=(name or "x", b"x"), purpose="user_data")
    assert "/" not in made.filename
    assert "\\" not in made.filename
    assert 0 < len(made.filename) <= 255
    assert client.files.content(made.id).read() == b"x"
    assert {path for path in folder(gateway).parent.rglob("*") if "files" not in path.parts} == before


@pytest.mark.parametrize("id", ["..%2f..%2frondo.db", "..", "%00", "file-../../x", "x" * 5000])
def test_an_id_is_never_a_path(gateway: RunningGateway, client: openai.OpenAI, id: str) -> None:
    headers = {"authorization": f"Bearer {client.api_key}"}
    for path in (f"/v1/files/{id}", f"/v1/files/{id}/content", f"/v1/batches/{id}"):
        assert httpx.get(gateway.url + path, headers=headers).status_code == 404


def test_a_range_of_a_content(gateway: RunningGateway, client: openai.OpenAI) -> None:
    made = client.files.create(file=(".html", b"0123456789"), purpose="user_data")
    headers = {"authorization": f"Bearer {client.api_key}"}
    url = f"{gateway.url}/v1/files/{made.id}/content"
    part = httpx.get(url, headers=headers | {"range": "bytes=2-4"})
    assert (part.status_code, part.content) == (206, b"234")
    assert part.headers["content-type"] == "application/octet-stream"
    assert part.headers["content-disposition"].startswith("attachment")
    assert httpx.get(url, headers=headers | {"range": "bytes=20-"}).status_code == 416


@pytest.mark.parametrize(
    ("options", "status", "param"),
    [
        ({"data": {"purpose": "batch"}}, 400, "file"),
        ({"files": {"file": b"x"}}, 400, "purpose"),
        ({"files": {"file": b"x"}, "data": {"purpose": "batch_output"}}, 400, "purpose"),
        ({"files": {"file": b"x"}, "data": {"purpose": "batch", "other": "1"}}, 400, "other"),
        ({"files": {"file": b"x"}, "data": {"purpose": "b" * 70_000}}, 400, "purpose"),
        ({"files": [("file", b"x"), ("file", b"y")], "data": {"purpose": "batch"}}, 400, "file"),
        ({"json": {"purpose": "batch"}}, 415, None),
        ({"content": b"x", "headers": {"content-type": "multipart/form-data"}}, 415, None),
        ({"content": b"x", "headers": {"content-type": "multipart/form-data; boundary=b"}}, 400, None),
    ],
)
def test_a_wrong_form_is_refused_and_leaves_nothing(
    gateway: RunningGateway, client: openai.OpenAI, options: dict[str, Any], status: int, param: str | None
) -> None:
    options = dict(options)
    headers = {"authorization": f"Bearer {client.api_key}", **options.pop("headers", {})}
    if "files" not in options and "data" in options:
        options["files"] = {"extra": (None, b"1")}
        param = "file"
    response = httpx.post(gateway.url + "/v1/files", headers=headers, **options)
    assert response.status_code == status, response.text
    if param is not None:
        assert response.json()["error"]["param"] == param
    assert not leftovers(gateway)


@pytest.mark.parametrize("part", [False, True])
def test_compressed_bodies_are_refused_undecoded(
    gateway: RunningGateway, client: openai.OpenAI, part: bool
) -> None:
    headers = {"authorization": f"Bearer {client.api_key}"}
    content: Any = ("a", b"x", "text/plain", {"Content-Encoding": "gzip"}) if part else ("a", b"x")
    headers |= {} if part else {"content-encoding": "gzip"}
    response = httpx.post(
        gateway.url + "/v1/files", headers=headers, files={"file": content}, data={"purpose": "batch"}
    )
    assert (response.status_code, response.json()["error"]["code"]) == (415, "unsupported_encoding")
    assert not leftovers(gateway)


def test_limits_of_a_file_and_of_an_owner(tmp_path: Path) -> None:
    limits = {"file_bytes": 1000, "owner_bytes": 1500}
    with gateway_of([], tmp_path, files=limits) as gateway, client_of(gateway) as client:
        with pytest.raises(openai.APIStatusError) as refused:
            client.files.create(file=b"x" * 1001, purpose="user_data")
        assert (refused.value.status_code, refused.value.code) == (413, "file_too_large")
        first = client.files.create(file=b"x" * 1000, purpose="user_data")
        with pytest.raises(openai.APIStatusError) as refused:
            client.files.create(file=b"x" * 600, purpose="user_data")
        assert refused.value.status_code == 413
        client.files.create(file=b"x" * 500, purpose="user_data")
        with pytest.raises(openai.RateLimitError) as full:
            client.files.create(file=b"x", purpose="user_data")
        assert full.value.code == "storage_quota_exceeded"
        with pytest.raises(openai.RateLimitError):
            client.uploads.create(bytes=1, filename="x", mime_type="x", purpose="user_data")
        client.files.delete(first.id)
        client.files.create(file=b"x" * 1000, purpose="user_data")
        assert not leftovers(gateway)


def test_a_client_that_hangs_up_leaves_nothing(gateway: RunningGateway, client: openai.OpenAI) -> None:
    host, port = gateway.url.removeprefix("http://").split(":")
    before = list((folder(gateway) / "kept").rglob("file-*"))
    with socket.create_connection((host, int(port))) as connection:
        connection.sendall(
            f"POST /v1/files HTTP/1.1\r\nHost: {host}:{port}\r\nAuthorization: Bearer {client.api_key}\r\n"
            "Content-Type: multipart/form-data; boundary=b\r\nContent-Length: 10000000\r\n\r\n"
            '--b\r\nContent-Disposition: form-data; name="file"; filename="x"\r\n\r\n'.encode()
        )
        connection.sendall(b"x" * 3_000_000)
        wait_until(lambda: any(path.stat().st_size for path in leftovers(gateway)))
    wait_until(lambda: not leftovers(gateway))
    assert list((folder(gateway) / "kept").rglob("file-*")) == before


def test_a_slow_body_is_given_up(tmp_path: Path) -> None:
    with gateway_of([], tmp_path, body_seconds=0.2) as gateway, client_of(gateway) as client:
        host, port = gateway.url.removeprefix("http://").split(":")
        with socket.create_connection((host, int(port))) as connection:
            connection.sendall(
                f"POST /v1/files HTTP/1.1\r\nHost: {host}:{port}\r\nAuthorization: Bearer {client.api_key}\r\n"
                "Content-Type: multipart/form-data; boundary=b\r\nContent-Length: 1000\r\n\r\n--b\r\n".encode()
            )
            connection.settimeout(60)
            assert b"408" in connection.recv(100)
        assert not leftovers(gateway)


def test_an_upload_in_parts_in_any_order(client: openai.OpenAI) -> None:
    content = bytes(range(256)) * 1000
    pieces = [content[at : at + 100_000] for at in range(0, len(content), 100_000)]
    upload = client.uploads.create(
        bytes=len(content), filename="x.bin", mime_type="application/octet-stream", purpose="user_data"
    )
    assert upload.status == "pending"
    parts = {
        number: client.uploads.parts.create(upload.id, data=pieces[number]).id
        for number in reversed(range(len(pieces)))
    }
    ordered = [parts[number] for number in range(len(pieces))]
    wrong = hashlib.md5(b"other").hexdigest()
    for ids, md5, code in (
        (ordered[::-1], hashlib.md5(content).hexdigest(), "checksum_mismatch"),
        (ordered, wrong, "checksum_mismatch"),
        (ordered[1:], wrong, "size_mismatch"),
        ([*ordered, "part_x"], wrong, None),
        (ordered[:1] * 2, wrong, None),
    ):
        with pytest.raises(openai.BadRequestError) as refused:
            client.uploads.complete(upload.id, part_ids=ids, md5=md5)
        assert refused.value.code == code
    done = client.uploads.complete(upload.id, part_ids=ordered, md5=hashlib.md5(content).hexdigest())
    assert done.status == "completed"
    assert done.file is not None
    assert client.files.content(done.file.id).read() == content
    assert client.uploads.complete(upload.id, part_ids=ordered) == done, "a repetition after a lost answer"
    with pytest.raises(openai.BadRequestError, match="completed"):
        client.uploads.parts.create(upload.id, data=b"x")
    with pytest.raises(openai.BadRequestError, match="completed"):
        client.uploads.cancel(upload.id)


def test_a_file_is_uploaded_in_chunks_by_the_client(client: openai.OpenAI, tmp_path: Path) -> None:
    path = tmp_path / "big.jsonl"
    path.write_bytes(b"0123456789" * 50_000)
    md5 = hashlib.md5(path.read_bytes()).hexdigest()
    upload = client.uploads.upload_file_chunked(
        file=path, mime_type="text/jsonl", purpose="batch", part_size=100_000, md5=md5
    )
    assert upload.file is not None
    assert (upload.file.filename, upload.file.purpose) == ("big.jsonl", "batch")
    assert client.files.content(upload.file.id).read() == path.read_bytes()


def test_uploads_are_cancelled_and_expire(gateway: RunningGateway, client: openai.OpenAI) -> None:
    def begin() -> str:
        upload = client.uploads.create(bytes=3, filename="x", mime_type="x", purpose="user_data")
        client.uploads.parts.create(upload.id, data=b"abc")
        return upload.id

    parts = folder(gateway) / "parts"
    first, second = begin(), begin()
    assert {path.name for path in parts.iterdir()} == {first, second}
    assert client.uploads.cancel(first).status == "cancelled"
    assert client.uploads.cancel(first).status == "cancelled"
    _expire(gateway, "uploads", second)
    with pytest.raises(openai.BadRequestError, match="expired"):
        client.uploads.complete(second, part_ids=[])
    gateway.gateway.objects.uploads.sweep().result()
    assert not list(parts.iterdir())


def test_a_part_is_bounded(client: openai.OpenAI, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rondo.gateway.routes.uploads.PART_BYTES", 1000)
    upload = client.uploads.create(bytes=3000, filename="x", mime_type="x", purpose="user_data")
    with pytest.raises(openai.APIStatusError) as refused:
        client.uploads.parts.create(upload.id, data=io.BytesIO(b"x" * 1001))
    assert refused.value.status_code == 413


def test_contents_that_a_crash_left_are_deleted_after_a_day(
    gateway: RunningGateway, client: openai.OpenAI, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = client.files.create(file=b"x", purpose="user_data")
    objects = gateway.gateway.objects
    orphan, part = objects.blobs.kept("file-orphan"), folder(gateway) / "incoming" / "part"
    for path in (orphan, part):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"x")
    objects.files.sweep().result()
    assert orphan.exists()
    monkeypatch.setattr("rondo.control.objects.files.ORPHAN_SECONDS", -1.0)
    objects.files.sweep().result()
    assert not orphan.exists()
    assert not part.exists()
    assert client.files.content(made.id).read() == b"x"


def test_a_full_disk_refuses_an_upload_and_leaves_nothing(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    with (
        small_disk(disk, "4m"),
        gateway_of([], tmp_path, files={"folder": str(disk)}) as gateway,
        client_of(gateway) as client,
    ):
        with pytest.raises(openai.APIStatusError) as refused:
            client.files.create(file=b"x" * 6_000_000, purpose="user_data")
        assert (refused.value.status_code, refused.value.code) == (507, "disk_full")
        assert not leftovers(gateway)
        made = client.files.create(file=b"x" * 3_000_000, purpose="user_data")
        upload = client.uploads.create(bytes=2_000_000, filename="x", mime_type="x", purpose="user_data")
        with pytest.raises(openai.APIStatusError) as refused:
            client.uploads.parts.create(upload.id, data=b"x" * 2_000_000)
        assert refused.value.status_code == 507
        client.files.delete(made.id)
        part = client.uploads.parts.create(upload.id, data=b"x" * 2_000_000)
        client.files.create(file=b"x" * 500_000, purpose="user_data")
        with pytest.raises(openai.APIStatusError) as refused:
            client.uploads.complete(upload.id, part_ids=[part.id])
        assert refused.value.status_code == 507
        resize(disk, "16m")
        done = client.uploads.complete(upload.id, part_ids=[part.id])
        assert done.file is not None
        assert len(client.files.content(done.file.id).read()) == 2_000_000
