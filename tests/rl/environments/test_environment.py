"""Tools and foreign code: what may go wrong has its words, and nobody waits for it for ever."""

import asyncio
import threading
from collections.abc import Sequence

import pytest

from rondo.base.errors import ConfigError
from rondo.rl.environments.environment import messages_of
from rondo.rl.environments.tools import LONGEST_RESULT, answer_call, tool
from rondo.rl.environments.user_code import Aside, Late
from rondo.rl.tasks.games import calculate
from rondo.text.conversation.answers import ParsedCall


def weigh(things: Sequence[str], precise: bool = False) -> dict[str, float]:
    """Weighs things."""
    return dict.fromkeys(things, 1.5 if precise else 1.0)


def told(function, arguments: str, name: str | None = None, seconds: float = 5.0) -> str:
    made = tool(function, seconds)
    call = ParsedCall(name or made.name, arguments, "call00001")
    message = asyncio.run(answer_call([made], call, Aside()))
    assert message["role"] == "tool"
    assert message["tool_call_id"] == "call00001"
    return message["content"]


def test_a_functions_signature_is_its_schema() -> None:
    shown = tool(weigh).shown["function"]
    assert shown["name"] == "weigh"
    assert shown["description"] == "Weighs things."
    assert shown["parameters"] == {
        "type": "object",
        "properties": {
            "things": {"type": "array", "items": {"type": "string"}},
            "precise": {"type": "boolean", "default": False},
        },
        "required": ["things"],
        "additionalProperties": False,
    }


def test_a_function_whose_arguments_cannot_be_told_is_refused() -> None:
    with pytest.raises(ConfigError, match="say the type of x"):
        tool(lambda x: x)

    def many(*all: int) -> int:
        return sum(all)

    with pytest.raises(ConfigError, match="name of its own"):
        tool(many)


def test_a_call_is_answered() -> None:
    assert told(weigh, '{"things": ["a", "ü"], "precise": true}') == '{"a": 1.5, "ü": 1.5}'
    assert told(calculate, '{"sum": "(3+4)*5"}') == "35"

    async def slowly(x: int) -> str:
        await asyncio.sleep(0)
        return f"got {x}"

    assert told(slowly, '{"x": 3}') == "got 3"


def test_what_goes_wrong_in_a_call_is_said_to_the_policy() -> None:
    assert told(calculate, '{"sum": "2**9"}').startswith("error: ValueError: '2**9' is no sum")
    assert told(calculate, "{}") == "error: calculate: sum: Field required."
    assert told(calculate, '{"sum": "1", "more": 2}').startswith("error: calculate: more: Extra inputs")
    assert told(calculate, "[1]") == "error: the arguments of calculate must be a JSON object."
    assert told(calculate, "{", name="calc") == "error: there is no tool 'calc'. Tools: calculate."

    def leaves() -> None:
        raise SystemExit(3)

    assert "SystemExit" in told(leaves, "{}")

    def ends() -> int:
        return next(iter(()))

    assert "StopIteration" in told(ends, "{}")

    def talks() -> str:
        return "x" * (LONGEST_RESULT + 5)

    assert told(talks, "{}").endswith("x... (5 more characters)")


def test_a_late_tool_is_left_behind() -> None:
    stop = threading.Event()

    def hangs() -> None:
        stop.wait(30)

    assert told(hangs, "{}", seconds=0.05) == "error: hangs gave nothing within 0.05 s."
    stop.set()


def test_a_coroutine_that_blocks_its_loop_is_left_behind_with_it(monkeypatch, caplog) -> None:
    monkeypatch.setattr("rondo.rl.environments.user_code.PING_SECONDS", 0.05)
    stop = threading.Event()

    async def blocks() -> None:
        stop.wait(30)

    async def waits() -> None:
        await asyncio.sleep(30)

    async def answers() -> int:
        return 7

    async def main() -> None:
        aside = Aside()
        assert await aside.call(5, answers) == 7
        with pytest.raises(Late):
            await aside.call(0.05, waits)
        assert "blocks" not in caplog.text
        with pytest.raises(Late):
            await aside.call(0.05, blocks)
        assert "blocks its event loop" in caplog.text
        assert await aside.call(5, answers) == 7
        aside.close()

    asyncio.run(main())
    stop.set()


def test_a_time_out_of_its_own_is_an_error_and_not_late() -> None:
    async def gives_up() -> None:
        raise TimeoutError("mine")

    async def cancels() -> None:
        raise asyncio.CancelledError

    async def main() -> None:
        aside = Aside()
        with pytest.raises(TimeoutError, match="mine"):
            await aside.call(5, gives_up)
        with pytest.raises(RuntimeError, match="cancelled itself"):
            await aside.call(5, cancels)
        aside.close()

    asyncio.run(main())


def test_plain_functions_run_side_by_side() -> None:
    together = threading.Barrier(16, timeout=30)

    async def main() -> None:
        aside = Aside()
        await asyncio.gather(*(aside.call(30, together.wait) for _ in range(16)))

    asyncio.run(main())


def test_a_text_is_a_users_message() -> None:
    assert messages_of("hello") == [{"role": "user", "content": "hello"}]
