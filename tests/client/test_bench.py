"""The benchmark's client: its prompts, its clock, its socket and its arithmetic."""

import asyncio
import json
import math
import statistics
import time
from collections.abc import Awaitable, Callable
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from rondo.base.errors import ConfigError, MissingExtra, Unavailable
from rondo.client.bench.arrivals import Ramp, arrival_times, ramped_times
from rondo.client.bench.figures import figures
from rondo.client.bench.load import RequestOutcome, TargetServer, first_model, run_load, wait_until_ready
from rondo.client.bench.plot import save_plot, save_sweeps
from rondo.client.bench.prompts import (
    Ask,
    LengthDistribution,
    LinePrompts,
    PromptDataset,
    Repeated,
    make_prompts,
)
from rondo.client.bench.report import LoadRun, failures, lines
from rondo.client.bench.wire import ServerAddress


def test_random_prompts_have_their_lengths_and_come_again_with_the_seed() -> None:
    dataset = PromptDataset("random", lengths=LengthDistribution(input=20, output=6, prefix=5))
    asked = make_prompts(dataset, 8, False, seed=1)
    assert {(len(ask.prompt), ask.max_tokens) for ask in asked} == {(25, 6)}
    assert len({tuple(ask.prompt[:5]) for ask in asked}) == 1
    assert len({tuple(ask.prompt) for ask in asked}) == 8
    assert make_prompts(dataset, 8, False, seed=1) == asked
    assert make_prompts(dataset, 8, False, seed=2) != asked


def test_lengths_spread_around_what_was_asked() -> None:
    dataset = PromptDataset("random", lengths=LengthDistribution(input=100, output=50, ratio=0.5))
    asked = make_prompts(dataset, 400, False, seed=0)
    assert 50 <= min(len(ask.prompt) for ask in asked) < 60
    assert 140 < max(len(ask.prompt) for ask in asked) <= 150
    assert abs(statistics.mean(ask.max_tokens for ask in asked) - 50) < 3


def test_a_chat_gets_text() -> None:
    [ask] = make_prompts(PromptDataset("random", lengths=LengthDistribution(input=5)), 1, True, seed=0)
    assert [len(word) for word in ask.prompt.split(" ")] == [1] * 5


def test_repeated_prefixes() -> None:
    dataset = PromptDataset("prefix_repetition", repeated=Repeated(prefix=9, suffix=3, prefixes=2, output=7))
    asked = make_prompts(dataset, 10, False, seed=0)
    assert {(len(ask.prompt), ask.max_tokens) for ask in asked} == {(12, 7)}
    assert len({tuple(ask.prompt[:9]) for ask in asked}) == 2
    with pytest.raises(ConfigError, match="2 prefixes need at least as many prompts"):
        make_prompts(dataset, 1, False, seed=0)


def test_files(tmp_path: Path) -> None:
    sharegpt = tmp_path / "s.json"
    talk = [{"from": "human", "value": "hello?"}, {"from": "gpt", "value": "x" * 40}]
    sharegpt.write_text(json.dumps([{"conversations": talk}, {"conversations": talk[:1]}]))
    assert make_prompts(PromptDataset("sharegpt", sharegpt), 2, True, 0) == [Ask("hello?", 10)] * 2
    custom = tmp_path / "c.jsonl"
    messages = [{"role": "user", "content": "b"}]
    custom.write_text(f'{{"prompt": "a", "output_tokens": 3}}\n\n{json.dumps({"messages": messages})}\n')
    assert make_prompts(PromptDataset("custom", custom), 3, True, 0) == [
        Ask("a", 3),
        Ask(messages, 256),
        Ask("a", 3),
    ]
    assert make_prompts(PromptDataset("custom", custom, output=9), 1, True, 0) == [Ask("a", 9)]


def test_lines_of_a_text_share_their_beginning(tmp_path: Path) -> None:
    text = tmp_path / "sonnets.txt"
    text.write_text("\n\n".join(f"line {i} of a long poem" for i in range(50)))
    lengths = LinePrompts(input=60, output=7, prefix=20)
    asked = make_prompts(PromptDataset("sonnet", text, lines=lengths), 6, False, seed=0)
    assert {ask.max_tokens for ask in asked} == {7}
    assert len({str(ask.prompt)[:80] for ask in asked}) == 1
    assert len({ask.prompt for ask in asked}) == 6
    assert all(60 * 4 <= len(ask.prompt) < 60 * 4 + 50 for ask in asked)


@pytest.mark.parametrize(
    ("kind", "text", "says"),
    [
        ("custom", '{"text": "a"}', "line 1: it must be"),
        ("custom", '{"messages": []}', "line 1: messages need --endpoint chat"),
        ("custom", "\n", "has no prompts"),
        ("sonnet", "\n", "has no lines"),
        ("sharegpt", "[1]", "is not ShareGPT's JSON"),
        ("sharegpt", "{", "is not ShareGPT's JSON"),
        ("custom", None, "needs a file: --dataset-path FILE"),
        ("nothing", None, "There is no dataset 'nothing'"),
    ],
)
def test_files_that_are_wrong(tmp_path: Path, kind: str, text: str | None, says: str) -> None:
    path = None
    if text is not None:
        path = tmp_path / "file"
        path.write_text(text)
    with pytest.raises(ConfigError, match=says):
        make_prompts(PromptDataset(kind, path), 1, False, 0)


@pytest.mark.parametrize(("burstiness", "spread"), [(1.0, 1.0), (0.25, 2.0), (math.inf, 0.0)])
def test_arrivals_have_their_rate_and_burstiness(burstiness: float, spread: float) -> None:
    times = arrival_times(4000, 8.0, burstiness, seed=0)
    gaps = np.diff([0.0, *times])
    assert times[-1] == pytest.approx(500)
    assert gaps.std() / gaps.mean() == pytest.approx(spread, abs=0.1)
    assert (gaps >= 0).all()
    assert arrival_times(3, math.inf, burstiness, seed=0) == [0, 0, 0]


@pytest.mark.parametrize(("exponential", "middle"), [(False, 5.5), (True, math.sqrt(10))])
def test_a_ramp_goes_from_one_rate_to_the_other(exponential: bool, middle: float) -> None:
    ramp = Ramp(exponential, 1.0, 10.0)
    gaps = np.diff([0.0, *ramped_times(101, ramp, math.inf, seed=0)])
    assert [1 / gaps[i] for i in (0, 50, 100)] == pytest.approx([1.0, middle, 10.0])
    drawn = ramped_times(101, ramp, 1.0, seed=0)
    assert drawn == sorted(drawn) == ramped_times(101, ramp, 1.0, seed=0)


def outcome(started: float, first: float, gaps: list[float], tokens: int, prompt: int = 5) -> RequestOutcome:
    return RequestOutcome(started, first, gaps, first + sum(gaps), prompt, tokens)


def test_figures() -> None:
    outcomes = [
        outcome(10.0, 0.1, [0.05, 0.05], 3),
        outcome(10.5, 0.3, [0.2], 3),  # its last event had two tokens
        outcome(11.9, 0.2, [], 1),
        RequestOutcome(10.0, error="gone"),
    ]
    found = figures(outcomes, 4.0, (50, 99), {"ttft": 250, "tpot": 60})
    assert (found.completed, found.failed, found.total_input, found.total_output) == (3, 1, 15, 7)
    assert found.request_throughput == 0.75
    assert found.output_throughput == 7 / 4
    assert found.total_token_throughput == 22 / 4
    assert found.request_goodput == 2 / 4
    assert found.max_output_tokens_per_s == 4
    assert found.max_concurrent_requests == 2
    assert found.spreads["tpot"].mean == pytest.approx(75)
    assert found.spreads["ttft"].median == pytest.approx(200)
    assert found.spreads["itl"].percentiles[99] == pytest.approx(np.percentile([50, 50, 200], 99))
    assert found.spreads["e2el"].std == pytest.approx(np.std([200, 500, 200]))


def test_nothing_succeeded() -> None:
    found = figures([RequestOutcome(0.0, error="refused")] * 2, 1.0)
    run = LoadRun(math.inf, None, [RequestOutcome(0.0, error="refused")] * 2, found)
    assert failures(run) == ["2 failed: refused"]
    assert "Failed requests:                         2" in lines(run, ["ttft"])
    assert found.spreads["ttft"].percentiles == {99: 0.0}


Answer = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


async def asked_of(answer: Answer, count: int = 1, chat: bool = False) -> list[RequestOutcome]:
    """What a client makes of a server that answers so."""
    listener = await asyncio.start_server(answer, "127.0.0.1", 0)
    port = listener.sockets[0].getsockname()[1]
    server = TargetServer(
        ServerAddress.of(f"http://127.0.0.1:{port}/v1"), "chat" if chat else "completions", "m"
    )
    try:
        outcomes, _ = await run_load(server, [Ask([1, 2], 3)] * count, [0.0] * count, max_concurrency=1)
        return outcomes
    finally:
        listener.close()


def event(**body: object) -> bytes:
    return b"data: " + json.dumps(body).encode() + b"\n\n"


TOKEN = event(choices=[{"text": "a", "delta": {"content": "a"}}], usage=None)
USAGE = event(choices=[], usage={"prompt_tokens": 2, "completion_tokens": 3})
END = b"data: [DONE]\n\n"
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"


def chunked(*parts: bytes) -> bytes:
    return b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in (*parts, b""))


async def read_request(reader: asyncio.StreamReader) -> bytes:
    head = await reader.readuntil(b"\r\n\r\n")
    length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
    return await reader.readexactly(length)


@pytest.mark.parametrize("piece", [1, 7, 4096])
def test_a_stream_is_read_however_it_is_cut(piece: int) -> None:
    connections = 0

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        try:
            while True:
                body = json.loads(await read_request(reader))
                assert body["prompt"] == [1, 2]
                assert (body["max_tokens"], body["stream_options"]) == (3, {"include_usage": True})
                whole = HEAD + chunked(b": ping\n\n" + TOKEN, TOKEN[:9], TOKEN[9:] + TOKEN, USAGE + END)
                for i in range(0, len(whole), piece):
                    writer.write(whole[i : i + piece])
                    await asyncio.sleep(0)
        except asyncio.IncompleteReadError:
            writer.close()

    outcomes = asyncio.run(asked_of(answer, count=3))
    assert [outcome.error for outcome in outcomes] == [""] * 3
    for each in outcomes:
        assert (each.prompt_tokens, each.output_tokens, len(each.gaps)) == (2, 3, 2)
        assert 0 < each.first <= each.latency == pytest.approx(each.first + sum(each.gaps))
    assert connections == 1  # it is used again


def test_times_are_those_of_the_tokens() -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        role = event(choices=[{"delta": {"role": "assistant", "content": ""}}])
        writer.write(HEAD + chunked(role)[:-5])
        for _ in range(3):
            await asyncio.sleep(0.05)
            writer.write(chunked(TOKEN)[:-5])
        await asyncio.sleep(0.05)
        writer.write(chunked(USAGE, END))

    begun = time.perf_counter()
    [each] = asyncio.run(asked_of(answer, chat=True))
    ended = time.perf_counter()
    assert each.error == ""
    assert begun <= each.started <= ended
    assert each.first > 0.04, "the event with the role is no token"
    assert len(each.gaps) == 2
    assert sum(each.gaps) > 0.06
    assert each.latency == pytest.approx(each.first + sum(each.gaps))
    assert ended - each.started - each.latency > 0.03, "the wait for usage is not the answer's"


@pytest.mark.parametrize(
    ("whole", "says"),
    [
        (b"HTTP/1.1 429 Too Many\r\nContent-Length: 4\r\n\r\nbusy", "status 429: busy"),
        (HEAD + chunked(TOKEN, USAGE), "the stream ended without [DONE]"),
        (HEAD + chunked(USAGE, END), "the stream had no tokens"),
        (HEAD + chunked(TOKEN, END), "did not say usage"),
        (HEAD + chunked(TOKEN, event(error={"message": "broken"}), END), "broken"),
        (HEAD + b"5\r\nda", "closed the connection in the middle"),
        (b"HTTP/1.1 200 OK\r\n\r\n" + TOKEN + USAGE + END, ""),
        (HEAD + chunked(b"data: {\n\n"), "an event that is not OpenAI's: {"),
        (HEAD + chunked(b"data: 1\n\n"), "an event that is not OpenAI's: 1"),
        (HEAD + chunked(TOKEN, event(usage={}), END), "an event that is not OpenAI's"),
        (HEAD + chunked(event(usage={"prompt_tokens": None, "completion_tokens": 1})), "not OpenAI's"),
        (b"HTTP/1.1\r\n\r\n", "does not speak HTTP/1.1"),
        (b"SSH-2.0 OpenSSH\r\n\r\n", "does not speak HTTP/1.1"),
    ],
)
def test_answers_that_fail_say_why(whole: bytes, says: str) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(whole)
        await writer.drain()
        writer.close()

    [each] = asyncio.run(asked_of(answer))
    assert says in each.error
    assert bool(says) == (not each.ok)


def test_no_server() -> None:
    server = TargetServer(ServerAddress.of("127.0.0.1:1"), "completions", "m")
    with pytest.raises(Unavailable, match=r"no answer from http://127.0.0.1:1 .*Is the server running\?"):
        asyncio.run(first_model(server))
    [each], _ = asyncio.run(run_load(server, [Ask([1], 1)], [0.0]))
    assert "no answer from" in each.error


def test_a_server_that_comes_up_later_is_waited_for() -> None:
    """Its socket is there first, then its model."""
    looked = 0

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal looked
        head = await reader.readuntil(b"\r\n\r\n")
        looked += 1
        if head.startswith(b"GET"):
            models = b'{"data": [{"id": "m"}]}' if looked > 1 else b"{}"
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(models), models))
        elif looked < 5:
            writer.write(b"HTTP/1.1 503 Loading\r\nContent-Length: 0\r\n\r\n")
        else:
            writer.write(HEAD + chunked(TOKEN, USAGE, END))
        writer.close()

    async def wait(seconds: float) -> TargetServer:
        listener = await asyncio.start_server(answer, "127.0.0.1", 0)
        port = listener.sockets[0].getsockname()[1]
        with closing(listener):
            server = TargetServer(ServerAddress.of(f"http://127.0.0.1:{port}"), "completions", "")
            return await wait_until_ready(server, Ask([10], 1), seconds)

    with pytest.raises(Unavailable, match=r"was not ready within 0.1 s: .*names no model"):
        asyncio.run(wait(0.1))
    assert asyncio.run(wait(30)).model == "m"
    assert looked >= 5


@pytest.mark.parametrize("url", ["ftp://x", "http://", "http://x:port"])
def test_addresses_that_are_none(url: str) -> None:
    with pytest.raises(ConfigError, match="is not a"):
        ServerAddress.of(url)


def test_addresses() -> None:
    assert ServerAddress.of("https://x.org/api/v1/") == ServerAddress("x.org", 443, "/api", True)
    assert str(ServerAddress.of("127.0.0.1:9")) == "http://127.0.0.1:9"


def test_plots(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="drawn where rondo-lab[plot] is installed")
    outcomes = [outcome(10.0, 0.1, [0.05, 0.05], 3), outcome(10.5, 0.3, [0.2], 3)]
    run = LoadRun(1.0, None, outcomes, figures(outcomes, 4.0))
    for runs in ([run], [run, run]):
        save_plot(runs, tmp_path / "plot.png")
        assert (tmp_path / "plot.png").read_bytes().startswith(b"\x89PNG")
    save_sweeps({"one": [run, run], "other": [run, run]}, tmp_path / "sweeps.png")
    assert (tmp_path / "sweeps.png").read_bytes() != (tmp_path / "plot.png").read_bytes()


def test_a_plot_without_its_extra_is_refused_before_the_load(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    from rondo.cli.commands import bench

    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(MissingExtra, match=r"rondo-lab\[plot\]"):
        bench.serve(["--base-url", "http://127.0.0.1:1", "--plot", "x.png"])


def test_a_picture_of_no_known_kind_is_refused_before_the_load(tmp_path: Path) -> None:
    from rondo.cli.commands import bench

    with pytest.raises(ConfigError, match=r"x\.docx: a picture ends in \..*\.png"):
        bench.serve(["--base-url", "http://127.0.0.1:1", "--plot", str(tmp_path / "x.docx")])
