"""Rows of registered and drained engines."""

from rondo.control.routing.registrations import EngineBook, StoredEngine
from rondo.control.store.store import Store


def test_registrations_and_drains_are_rows_of_their_host(store: Store) -> None:
    book = EngineBook(store)
    book.drain("", "a:1").result()
    book.register("", "b:1", "http://b:1").result()
    book.drain("", "b:1").result()
    book.drain("", "b:1").result()
    book.drain("h", "a:1").result()
    assert book.all([""]).result() == [
        StoredEngine("a:1", None, True),
        StoredEngine("b:1", "http://b:1", True),
    ]
    book.remove("", "a:1").result()
    assert len(book.all(["", "h"]).result()) == 3
    book.resume("h", "a:1").result()
    assert len(book.all(["", "h"]).result()) == 2
    book.register("", "a:1", "http://a:1").result()
    book.resume("", "b:1").result()
    book.remove("", "a:1").result()
    assert book.all(["", "h"]).result() == [StoredEngine("b:1", "http://b:1", False)]
