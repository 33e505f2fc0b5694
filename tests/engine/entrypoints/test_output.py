import pytest
from hypothesis import given
from hypothesis import strategies as st

from rondo.client.types import SamplingParams
from rondo.engine.entrypoints.output import SampleReader, StopMatcher
from rondo.engine.schedule.request import Request


class Letters:
    """Token i is the i-th letter; a stand-in for a tokenizer."""

    def encode(self, text: str, add_special: bool = True) -> list[int]:
        return [ord(c) - 97 for c in text]

    def decode(self, ids: list[int], skip_special: bool = True) -> str:
        return "".join(chr(97 + i) for i in ids)

    def detokenizer(self, skip_special: bool = True, *, keep=()) -> "Letters":
        return self

    def push(self, ids: list[int]) -> str:
        return self.decode(ids)

    def flush(self) -> str:
        return ""


def feed(pieces: list[str], stop: tuple[str, ...], include: bool = False) -> tuple[str, str | None]:
    matcher = StopMatcher(stop, include)
    out = ""
    for piece in pieces:
        text, hit = matcher.push(piece)
        out += text
        if hit is not None:
            return out, hit
    return out + matcher.flush(), None


def test_a_stop_string_over_several_pieces():
    assert feed(["he", "llo E", "N", "D more"], ("END",)) == ("hello ", "END")
    assert feed(["he", "llo E", "N", "D more"], ("END",), include=True) == ("hello END", "END")
    assert feed(["xE", "Nx"], ("END",)) == ("xENx", None)
    assert feed(["xEN"], ("END",)) == ("xEN", None)


def test_the_earliest_stop_string_wins_and_the_longer_of_two_at_one_place():
    assert feed(["abcd"], ("cd", "b")) == ("a", "b")
    assert feed(["abcd"], ("bc", "b"), include=True) == ("abc", "bc")


@given(st.text("ab", max_size=30), st.lists(st.text("ab", min_size=1, max_size=4), min_size=1, max_size=3))
def test_letter_by_letter_is_what_looking_back_gives(text, stops):
    want: tuple[str, str | None] = (text, None)
    for end in range(1, len(text) + 1):
        hits = [stop for stop in stops if text[:end].endswith(stop)]
        if hits:
            longest = max(hits, key=len)
            want = (text[: end - len(longest)], longest)
            break
    assert feed(list(text), tuple(stops)) == want


def sample(params: SamplingParams, stop_ids: frozenset[int] = frozenset()) -> Request:
    return Request("r", 0, [0, 1], params, 100, 0, stop_ids=stop_ids)


def say(request: Request, text: str, version: int = 0) -> None:
    for token in Letters().encode(text):
        request.tokens.append(token)
        request.weight_versions.append(version)


def test_a_reader_takes_what_is_new_and_then_the_end():
    request = sample(SamplingParams())
    reader = SampleReader(request, Letters())
    assert reader.read() is None
    say(request, "ab")
    chunk = reader.read()
    assert (chunk.text, chunk.token_ids, chunk.finish_reason) == ("ab", [0, 1], None)
    assert reader.read() is None
    say(request, "cd", version=1)
    request.finish_reason = "length"
    chunk = reader.read()
    assert (chunk.text, chunk.weight_versions, chunk.finish_reason) == ("cd", [1, 1], "length")
    assert reader.done
    assert reader.read() is None


@pytest.mark.parametrize(("include", "text"), [(False, "ab"), (True, "abz")])
def test_the_token_that_ends_a_sample_is_hidden_from_the_text_alone(include, text):
    request = sample(SamplingParams(include_stop_str_in_output=include), stop_ids=frozenset({25}))
    say(request, "abz")
    request.finish_reason = "stop"
    chunk = SampleReader(request, Letters()).read()
    assert (chunk.text, chunk.token_ids) == (text, [0, 1, 25])


def test_tokens_after_a_stop_string_are_dropped():
    request = sample(SamplingParams(stop=("cd",)))
    say(request, "abcdefgh")
    chunk = SampleReader(request, Letters()).read()
    assert (chunk.text, chunk.token_ids, chunk.finish_reason, chunk.stop_reason) == (
        "ab",
        [0, 1, 2, 3],
        "stop",
        "cd",
    )
