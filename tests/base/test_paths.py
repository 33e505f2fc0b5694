from pathlib import Path

import pytest

from rondo.base.errors import InvalidRequest
from rondo.base.storage.home import home
from rondo.base.storage.paths import path_of


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("~nobody-of-that-name/x", "there is no user '~nobody-of-that-name' with a home folder here"),
        ("x" * 300, "longer than the file system allows"),
        ("/tmp/" + "x/" * 5000, "longer than the file system allows"),
        ("/" + "/".join(["x" * 200] * 20) + "/" + "y" * 60, "longer than the file system allows"),
        ("a\0b", "a character that no path may have"),
        ("a\ud800b", "a character that no path may have"),
    ],
)
def test_what_is_no_path_names_the_field(text: str, says: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        path_of(text, "lora_path")
    assert caught.value.param == "lora_path"
    assert caught.value.message.startswith("lora_path '")
    assert says in caught.value.message
    assert len(caught.value.message) < 200


def test_a_path_need_not_be_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert path_of("~/none/at/all", "model") == tmp_path / "none/at/all"
    assert path_of(Path("here"), "model") == Path("here")
    (tmp_path / "file").touch()
    assert path_of(tmp_path / "file" / "below", "model") == tmp_path / "file" / "below"


def test_a_home_that_is_nobodys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RONDO_HOME", "~nobody-of-that-name/x")
    with pytest.raises(InvalidRequest, match="RONDO_HOME '~nobody"):
        home()
