from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from rondo.ops.native.build import room as rooms
from rondo.ops.native.build.room import room


def test_a_thread_keeps_what_is_enough() -> None:
    with ThreadPoolExecutor(1) as pool:
        first, smaller, larger, last = list(pool.map(room, (100, 50, 200, 200)))
    assert smaller is first
    assert larger is last
    assert larger.numel() >= 200


def test_each_thread_has_its_own() -> None:
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(room, 10).result().data_ptr() != room(10).data_ptr()


def test_what_is_made_in_inference_serves_elsewhere() -> None:
    def made() -> torch.Tensor:
        with torch.inference_mode():
            return room(10)

    with ThreadPoolExecutor(1) as pool:
        assert not pool.submit(made).result().is_inference()


def test_more_than_a_thread_may_keep_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rooms, "KEPT", 100)
    with ThreadPoolExecutor(1) as pool:
        kept, large, again = list(pool.map(room, (100, 101, 100)))
    assert large.numel() == 101
    assert again is kept
