import hashlib
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rondo.base.errors import InvalidRequest, NotFound
from rondo.base.storage.hashing import canonical_json, sha256_file, sha256_json

WORDS = st.text(st.characters(exclude_categories=["Cs"]))
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | WORDS,
    lambda inner: st.lists(inner) | st.dictionaries(WORDS, inner),
    max_leaves=12,
)


def test_known_bytes():
    assert canonical_json({"b": [1, 2.5, None], "a": "ü"}) == '{"a":"ü","b":[1,2.5,null]}'.encode()
    assert sha256_json({}) == hashlib.sha256(b"{}").hexdigest()


@given(JSON)
def test_reading_it_back_gives_the_same(value: object):
    assert json.loads(canonical_json(value)) == value


@given(st.dictionaries(WORDS, JSON))
def test_order_does_not_matter(value: dict[str, object]):
    assert sha256_json(value) == sha256_json(dict(reversed(value.items())))


@pytest.mark.parametrize("value", [{"x": float("nan")}, {1: 2}, {"x": [{2: 3}]}, {"x": object()}, "\ud800"])
def test_what_has_no_canonical_form_is_refused(value: object):
    with pytest.raises(InvalidRequest, match="canonical JSON"):
        canonical_json(value)


def test_file(tmp_path: Path):
    (tmp_path / "f").write_bytes(b"abc")
    assert sha256_file(tmp_path / "f") == hashlib.sha256(b"abc").hexdigest()
    with pytest.raises(NotFound):
        sha256_file(tmp_path / "absent")
