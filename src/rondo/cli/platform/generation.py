"""A run of `rondo generate`: validation, submission in pieces, results in order, resume from a state file.

Beside the results `OUT` there are, until the run ends, `OUT.part` with results and `OUT.state` with the group.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec

from rondo.base.errors import Conflict, InvalidRequest, NotFound, RondoError
from rondo.base.ids import new_id
from rondo.base.storage.files import write_json
from rondo.client.http import Client
from rondo.client.platform.queue import patiently
from rondo.client.protocol.item import ITEM_PATHS, read_result
from rondo.gateway.queued.prompts import of_result, path_and_body

AT_A_TIME = 1000
PAGE = 500
POLL_SECONDS = 2.0
REFUSALS = (400, 403, 404, 413, 422)
"""Statuses of a submission that fails again when it is repeated. With 409, another command submits the same group."""
Report = Callable[[int, int, int], None]
"""Called with the numbers of ended, failed and all prompts."""


class Generation:
    def __init__(
        self,
        client: Client,
        source: Path,
        out: Path,
        model: str | None,
        options: Mapping[str, Any],
        priority: int = 0,
        full: bool = False,
    ) -> None:
        """`model` is for lines without one; None if the gateway lists no model."""
        self.client, self.source, self.out, self.model = client, source, out, model
        self.options, self.priority, self.full = dict(options), priority, full
        self.group = ""
        self._part, self._state = out.with_name(f"{out.name}.part"), out.with_name(f"{out.name}.state")

    def run(self, retries: int, report: Report) -> tuple[int, int]:
        """Numbers of ended and of failed prompts."""
        self._check()
        key = self._key()
        try:
            total = self._submit(key, report)
        except RondoError as error:
            raise self._withdrawn(error) from error
        failed = self._fetch(total, report)
        for _ in range(retries):
            if not failed:
                break
            self._part.unlink()  # before the retry: an interrupted run then reads all results again
            patiently(partial(self.client.retry_group, self.group))
            failed = self._fetch(total, report)
        self._part.replace(self.out)
        self._state.unlink(missing_ok=True)
        return total, failed

    @property
    def resumable(self) -> bool:
        """Whether a group exists that the same command continues."""
        return bool(self.group) and self._state.exists()

    def _check(self) -> None:
        """Validates every line before the first one is submitted."""
        if not sum(1 for _ in self._items()):
            raise InvalidRequest(f"{self.source} has no prompts: write one on each line.", param="file")

    def _submit(self, key: str, report: Report) -> int:
        """Stores the prompts that the group lacks, and seals it."""
        lines = self._items()
        first = list(islice(lines, AT_A_TIME))
        put = partial(self.client.submit, first, idempotency_key=key, sealed=False)
        group = patiently(put)
        self.group = group["id"]
        write_json(self._state, json.loads(self._state.read_text()) | {"group": self.group})
        read, stored = len(first), group["total"]
        while not group["sealed"]:
            chunk = list(islice(lines, AT_A_TIME))
            missing = chunk[max(0, stored - read) :]
            read += len(chunk)
            if missing or not chunk:
                group = self._extend(stored, missing, seal=not chunk)
                stored = group["total"]
            report(0, 0, stored)
        return int(stored)

    def _withdrawn(self, error: RondoError) -> RondoError:
        """The error of a submission. Unless a repetition may succeed, the group is cancelled and the state removed."""
        if error.status not in REFUSALS:
            return error
        if not self.group:
            if "group" not in json.loads(self._state.read_text()):
                self._state.unlink(missing_ok=True)
            return error
        with suppress(RondoError):
            patiently(partial(self.client.cancel_group, self.group))
            self._state.unlink(missing_ok=True)
            told = type(error)(f"{error.message} Group {self.group} is cancelled.", param=error.param)
            told.status, told.code = error.status, error.code
            return told
        return error

    def _extend(self, at: int, items: list[dict[str, Any]], seal: bool) -> dict[str, Any]:
        def extend() -> dict[str, Any]:
            try:
                return self.client.extend(self.group, at, items, seal=seal)
            except Conflict:
                group = self.client.group(self.group)  # an answer was lost on its way
                if group["total"] == at + len(items) and group["sealed"] == seal:
                    return group
                raise

        return patiently(extend)

    def _key(self) -> str:
        """Idempotency key of the run; the one of an interrupted run with the same prompts."""
        digest = hashlib.sha256(json.dumps([self.model, self.options, self.priority]).encode())
        with self.source.open("rb") as file:
            while data := file.read(1 << 20):
                digest.update(data)
        same = digest.hexdigest()
        if self._state.exists():
            state = json.loads(self._state.read_text())
            if state["digest"] == same:
                return str(state["key"])
            cancel = f" after `rondo queue cancel {state['group']}`" if "group" in state else ""
            raise Conflict(
                f"{self._state} is of an interrupted run with other prompts or options: repeat that command, "
                f"or{cancel} remove {self._state} and {self._part}."
            )
        self._part.unlink(missing_ok=True)
        key = new_id("key")
        write_json(self._state, {"key": key, "digest": same})
        return key

    def _items(self) -> Iterator[dict[str, Any]]:
        with self.source.open("rb") as file:
            for number, line in enumerate(file, 1):
                if line.strip():
                    try:
                        yield self._item(line)
                    except (InvalidRequest, NotFound) as error:
                        named = f"{self.source}, line {number}: {error.message}"
                        raise type(error)(named, param=error.param) from None

    def _item(self, line: bytes) -> dict[str, Any]:
        try:
            value = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise InvalidRequest(f"not JSON: {error}.", param="file") from None
        fields: dict[str, Any] = value if isinstance(value, dict) else {}
        if isinstance(fields.get("body"), dict):
            path, body = fields.get("path") or fields.get("url"), fields["body"]
            body = {"model": self._model(body), **body}
        else:
            path, encoded = path_and_body(value, self.options, self._model(fields))
            body = json.loads(encoded)
        if path not in ITEM_PATHS:
            raise InvalidRequest(
                f"requests to {path!r} cannot be queued; possible paths: {', '.join(sorted(ITEM_PATHS))}.",
                param="path",
            )
        return {"path": path, "body": body, "priority": self.priority}

    def _model(self, fields: Mapping[str, Any]) -> str:
        model = fields.get("model") or self.model
        if model is None:
            raise NotFound("no model is named, and the gateway serves none: set --model.", param="--model")
        if not isinstance(model, str):
            raise InvalidRequest("the field model is a text.", param="model")
        return model

    def _fetch(self, total: int, report: Report) -> int:
        """Appends results to the part until it has all; the number of failed prompts."""
        place, failed = self._resume()
        names = self._names(place + 1)
        with self._part.open("ab") as file:
            while place < total - 1:
                page = patiently(partial(self.client.result_page, self.group, place, PAGE, POLL_SECONDS))
                for each in page["data"]:
                    file.write(
                        json.dumps(self._shown(each, next(names)), ensure_ascii=False).encode() + b"\n"
                    )
                    place = each["place"]
                    failed += each["state"] != "done"
                file.flush()
                group = patiently(partial(self.client.group, self.group))
                report(total - group["unfinished"], failed, total)
        return failed

    def _resume(self) -> tuple[int, int]:
        """Place of the last whole result in the part, and the number of failed ones."""
        if not self._part.exists():
            return -1, 0
        data = self._part.read_bytes()
        whole = data[: data.rfind(b"\n") + 1]
        if len(whole) < len(data):
            self._part.write_bytes(whole)
        lines = whole.splitlines()
        return len(lines) - 1, sum(json.loads(line)["error"] is not None for line in lines)

    def _names(self, begin: int) -> Iterator[str | None]:
        """`custom_id` of the lines from `begin` on."""
        with self.source.open("rb") as file:
            for line in islice((line for line in file if line.strip()), begin, None):
                value = json.loads(line)
                yield value.get("custom_id") if isinstance(value, dict) else None

    def _shown(self, each: Mapping[str, Any], custom_id: str | None) -> dict[str, Any]:
        shown: dict[str, Any] = {"place": each["place"], "response": None, "error": None}
        if custom_id is not None:
            shown["custom_id"] = custom_id
        if each["result"] is None:
            return shown | {"error": each["error"] or each["state"]}
        shown |= of_result(read_result(msgspec.json.encode(each["result"])))
        return shown | {"body": each["result"]["body"]} if self.full else shown
