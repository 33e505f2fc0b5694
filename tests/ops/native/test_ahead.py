"""No request waits for a compiler."""

import threading

from rondo.ops.native.build import ahead
from rondo.ops.native.build.build import SOURCES


def test_all_that_is_compiled_is_compiled_ahead(monkeypatch):
    """Each by itself, and all at once: the last to begin does so before the first has ended."""
    sources = set(SOURCES)
    together, asked = threading.Barrier(len(sources), timeout=60), []

    def library(name):
        asked.append(name)
        together.wait()

    monkeypatch.setattr(ahead, "library", library)
    ahead.compile_all()
    assert sorted(asked) == sorted(sources)
