"""Episodes end as their bounds and environments say, and their tokens are the engine's."""

import asyncio
import math
import re
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from rondo import models
from rondo.base.errors import ConfigError
from rondo.base.storage.hashing import sha256_file
from rondo.base.telemetry import metrics
from rondo.client.types import SamplingParams
from rondo.engine.config import EngineConfig
from rondo.engine.core import EngineCore
from rondo.engine.entrypoints.async_engine import AsyncEngine
from rondo.graders import Score
from rondo.rl.environments.environment import Bounds, Graded, Turn
from rondo.rl.environments.tools import tool
from rondo.rl.rollout.types import Rollout
from rondo.rl.tasks.games import GAMES, GUESSES, Game, Guess, calculate
from rondo.rl.tasks.registry import find
from rondo.rl.tasks.types import Problem
from rondo.text.bpe import train_bpe
from rondo.text.tokenizer import Tokenizer
from server.families import HERMES
from support.speaking import Speaking
from support.tiny import tiny_model, tiny_tokenizer

END = "<|im_end|>"
SAMPLING = SamplingParams(max_tokens=64)
GUESS = Problem("guess 1 to 7", {"secret": 5})


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return tiny_tokenizer()


@pytest.fixture(scope="module")
def hermes() -> Tokenizer:
    return train_bpe(["the user asks", "tool_call arguments"] * 3, 300, chat_template=HERMES)


def play(
    environment: Callable[[], Any],
    engine: Any,
    problem: Problem = GUESS,
    max_model_len: int = 4096,
    past: Any = "segment",
    sampling: SamplingParams = SAMPLING,
    **bounds: Any,
) -> Rollout:
    game = Game("tried", environment, bounds=Bounds(**bounds), past=past)
    game.prepare(engine.tokenizer, max_model_len)
    rollout = asyncio.run(game.play(engine, problem, sampling, seed=3, index=1))
    assert rollout.score is not None
    for piece in (*rollout.earlier, rollout):
        lengths = {len(piece.token_ids), len(piece.sampled), len(piece.logprobs), len(piece.versions)}
        assert len(lengths) == 1
    return rollout


def in_turns(tokenizer: Tokenizer, rollout: Rollout) -> list[tuple[bool, str]]:
    """The text, cut where it is another's turn."""
    turns: list[tuple[bool, list[int]]] = []
    for id, sampled in zip(rollout.token_ids, rollout.sampled, strict=True):
        if not turns or turns[-1][0] != sampled:
            turns.append((sampled, []))
        turns[-1][1].append(id)
    return [(sampled, tokenizer.decode(ids, skip_special=False)) for sampled, ids in turns]


def counted(finish: str) -> float:
    text = metrics.render().decode()
    found = re.search(rf'rondo:episodes_total{{finish="{finish}",task="tried"}} (\S+)', text)
    return float(found[1]) if found else 0.0


def halving(prompt: str) -> str:
    """Plays well."""
    low, high = map(int, re.findall(r"guess (\d) to (\d)", prompt)[0])
    told = re.findall(r"assistant\n(\d)<\|im_end\|>\n<\|im_start\|>user\n(\w+)", prompt)
    for guess, hint in told:
        low, high = (int(guess) + 1, high) if hint == "higher" else (low, int(guess) - 1)
    return f"{(low + high) // 2}{END}"


def test_a_policy_and_an_environment_take_turns(tokenizer: Tokenizer) -> None:
    rollout = play(Guess, Speaking(tokenizer, halving))
    assert in_turns(tokenizer, rollout) == [
        (True, f"4{END}"),
        (False, "\n<|im_start|>user\nhigher<|im_end|>\n<|im_start|>assistant\n"),
        (True, f"6{END}"),
        (False, "\n<|im_start|>user\nlower<|im_end|>\n<|im_start|>assistant\n"),
        (True, f"5{END}"),
    ]
    assert rollout.prompt_ids == tokenizer.apply_chat(GUESS.messages)
    assert {(s, p) for s, p in zip(rollout.sampled, rollout.logprobs, strict=True)} == {
        (True, -0.25),
        (False, 0.0),
    }
    assert rollout.finish_reason == "stop"
    assert rollout.score is not None
    assert rollout.score.outcome == "ok"
    assert rollout.score.total == pytest.approx(1)
    assert rollout.score.parts == pytest.approx({"format": 1, "correct": 1})
    assert rollout.earlier == ()


def test_a_good_player_always_finds_the_number_and_a_silent_one_never(tokenizer: Tokenizer) -> None:
    game = GAMES["guess"]
    game.prepare(tokenizer, 256)
    for problem in game.prompts(0, 20) + game.prompts(0, 20, "held_out"):
        found = asyncio.run(game.play(Speaking(tokenizer, halving), problem, SAMPLING, 0, 0)).score
        assert found is not None
        assert found.total == pytest.approx(1)
        missed = asyncio.run(game.play(Speaking(tokenizer, lambda _: f"no{END}"), problem, SAMPLING, 0, 0))
        assert missed.score == Score("ok", 0.0, {"format": 0.0, "correct": 0.0})
        assert sum(sampled for sampled, _ in in_turns(tokenizer, missed)) == GUESSES


def test_held_out_episodes_are_never_trained_on() -> None:
    game = GAMES["guess"]
    kept = {(p.question, p.facts["secret"]) for p in game.prompts(1, 100, "held_out")}
    trained = {(p.question, p.facts["secret"]) for p in game.prompts(1, 500)}
    assert kept
    assert not kept & trained
    assert game.prompts(1, 5) == game.prompts(1, 5)


def test_games_and_environments_are_found_by_name(tmp_path: Path) -> None:
    assert find("guess") is GAMES["guess"]
    file = tmp_path / "mine.py"
    file.write_text(
        "from rondo.rl.environments.environment import Turn\n"
        "class Mine:\n"
        "    def reset(self, problem, seed): return 'x'\n"
        "    def step(self, answer): return Turn(done=True)\n"
    )
    found = find(f"{file}:Mine")
    assert isinstance(found, Game)
    assert found.name == "mine"
    assert found.fingerprint == sha256_file(file)
    assert len({problem.question for problem in found.prompts(0, 5)}) == 5


def test_tools_are_called_within_an_episode(hermes: Tokenizer) -> None:
    game = GAMES["calculator"]
    game.prepare(hermes, 4096)
    problem = game.prompts(0, 1)[0]

    def answer(prompt: str) -> str:
        result = re.findall(r"<tool_response>\n(.*)\n</tool_response>", prompt)
        sum = re.findall(r"work out (\S+?)<", prompt)[0]
        call = f'<tool_call>{{"name": "calculate", "arguments": {{"sum": "{sum}"}}}}</tool_call>'
        return (result[0] if result else call) + END

    engine = Speaking(hermes, answer)
    rollout = asyncio.run(game.play(engine, problem, SAMPLING.with_(max_tokens=200), 0, 0))
    (_, call), (mine, result), (_, said) = in_turns(hermes, rollout)
    assert call.startswith('<tool_call>{"name": "calculate"'), "in its own blanks"
    assert not mine
    value = str(problem.facts["value"])
    assert f"<tool_response>\n{value}\n</tool_response>" in result
    assert said == value + END
    assert rollout.score == Score("ok", 1.0, {"format": 1.0, "correct": 1.0})
    assert "Works out a sum" in engine.prompt(), "the template shows the tool"


def test_tools_that_the_template_cannot_show_are_refused(tokenizer: Tokenizer) -> None:
    with pytest.raises(ConfigError, match="does not show") as refused:
        play(lambda: Graded(GAMES["guess"], [tool(calculate)]), Speaking(tokenizer, halving))
    assert refused.value.param == "rl.task"


class Endless:
    async def reset(self, problem: Problem, seed: int) -> str:
        return f"seed {seed}"

    async def step(self, answer: Any) -> Turn:
        return Turn("more", reward=0.5, parts={"said": 1.0})


@pytest.mark.parametrize(
    ("finish", "answers", "whole", "bounds"),
    [
        ("turns", 3, 3, {"turns": 3}),
        ("length", 3, 2, {"tokens": 7}),
        ("length", 3, 3, {"max_model_len": 70}),
        ("length", 0, 0, {"max_model_len": 8}),
    ],
)
def test_an_environment_that_never_ends_ends_at_a_bound(
    tokenizer: Tokenizer, finish: str, answers: int, whole: int, bounds: dict[str, int]
) -> None:
    before = counted(finish)
    rollout = play(Endless, Speaking(tokenizer, lambda _: f"ok{END}"), **bounds)
    assert rollout.finish_reason == finish
    assert counted(finish) == before + 1
    assert not rollout.sampled or rollout.sampled[-1], "what nobody answered is left out"
    assert sum(sampled for sampled, _ in in_turns(tokenizer, rollout)) == answers
    assert rollout.score is not None
    assert rollout.score.outcome == "ok"
    assert rollout.score.total == pytest.approx(0.5 * whole), "what was earned until then"
    if "tokens" in bounds:
        assert sum(rollout.sampled) == 7


def test_wall_time_ends_an_episode_with_what_was_said(tokenizer: Tokenizer) -> None:
    class Slow(Speaking):
        async def generate(self, request: Any) -> Any:
            async for chunk in super().generate(request):
                yield chunk
                if len(self.requests) == 2:
                    await asyncio.sleep(30)

    rollout = play(Endless, Slow(tokenizer, lambda _: f"ok{END}"), seconds=0.5)
    assert rollout.finish_reason == "time"
    first = len(tokenizer.encode(f"ok{END}"))
    assert sum(rollout.sampled) == first + 1
    assert rollout.score is not None
    assert (rollout.score.outcome, rollout.score.total) == ("ok", 0.5)


class Bad(Endless):
    reply: Any = None

    async def step(self, answer: Any) -> Any:
        if isinstance(self.reply, BaseException):
            raise self.reply
        return self.reply


@pytest.mark.parametrize(
    ("reply", "why"),
    [
        (ZeroDivisionError("by zero"), "step failed: ZeroDivisionError: by zero"),
        (SystemExit(2), "it raised SystemExit(2)"),
        (None, "must return a Turn"),
        (Turn("x", reward=math.nan), "must be finite"),
        (Turn("x", parts={"a": "b"}), "must be finite"),  # type: ignore[dict-item]
        (Turn(), "neither said anything nor was done"),
        (Turn([{"content": "x"}]), "messages with a role"),
        (Turn([{"role": "user"}]), "has no content"),
    ],
    ids=lambda each: each if isinstance(each, str) else "",
)
def test_what_an_environment_does_wrong_is_an_outcome(tokenizer: Tokenizer, reply: Any, why: str) -> None:
    before = counted("error")
    environment = type("Wrong", (Bad,), {"reply": reply})
    rollout = play(environment, Speaking(tokenizer, lambda _: f"ok{END}"))
    assert rollout.finish_reason == "error"
    assert rollout.score is not None
    assert rollout.score.outcome == "error"
    assert why in rollout.score.detail
    assert counted("error") == before + 1


def test_an_environment_that_cannot_be_made_is_an_outcome_too(tokenizer: Tokenizer) -> None:
    def unmade() -> Any:
        raise ConnectionError("no such host")

    rollout = play(unmade, Speaking(tokenizer, lambda _: f"ok{END}"))
    assert rollout.score is not None
    assert rollout.score.outcome == "error"
    assert "ConnectionError: no such host" in rollout.score.detail
    assert rollout.token_ids == []


def test_an_environment_that_hangs_is_late_and_one_that_blocks_too(tokenizer: Tokenizer) -> None:
    stop = threading.Event()

    class Hangs(Endless):
        async def step(self, answer: Any) -> Turn:
            await asyncio.sleep(30)
            return Turn(done=True)

    class Blocks:
        def reset(self, problem: Problem, seed: int) -> str:
            stop.wait(30)
            return "never"

    engine = Speaking(tokenizer, lambda _: f"ok{END}")
    for environment, said in ((Hangs, 1), (Blocks, 0)):
        rollout = play(environment, engine, step_seconds=0.1)
        assert rollout.finish_reason == "timeout"
        assert rollout.score is not None
        assert rollout.score.outcome == "timeout"
        assert "within 0.1 s" in rollout.score.detail
        assert len(in_turns(tokenizer, rollout)) == said
    stop.set()


def test_an_environment_is_closed_however_it_ends(tokenizer: Tokenizer) -> None:
    closed: list[str] = []

    class Closes(Bad):
        reply = ValueError("no")

        def close(self) -> None:
            closed.append("closed")
            raise OSError("nor can it be closed")

    assert play(Closes, Speaking(tokenizer, lambda _: f"ok{END}")).finish_reason == "error"
    assert closed == ["closed"]


THINKS = (
    "{%- for message in messages %}{{- '<|im_start|>' + message.role + '\\n' }}"
    "{%- if message.reasoning_content and loop.last %}{{- '<think>' + message.reasoning_content + '</think>' }}"
    "{%- endif %}{{- message.content + '<|im_end|>\\n' }}{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}"
)


def test_where_the_template_forgets_thoughts_an_episode_is_of_several_pieces(tokenizer: Tokenizer) -> None:
    thinking = tokenizer.with_chat_template(THINKS)
    engine = Speaking(thinking, lambda _: f"<think>hm</think>ok{END}")
    rollout = play(Endless, engine, turns=3)
    pieces = (*rollout.earlier, rollout)
    assert [piece.finish_reason for piece in pieces] == ["segment", "segment", "turns"]
    for piece, request in zip(pieces, engine.requests, strict=True):
        assert piece.prompt_ids == list(request.prompt_ids)
        assert in_turns(thinking, piece) == [(True, f"<think>hm</think>ok{END}")]
    last = thinking.decode(pieces[-1].prompt_ids or [], skip_special=False)
    assert last.count("<|im_start|>assistant\nok<|im_end|>") == 2
    assert "hm" not in last
    assert [piece.score is None for piece in pieces] == [True, True, False]
    rollout = play(Endless, engine, turns=3, past="error")
    assert rollout.finish_reason == "error"
    assert rollout.score is not None
    assert "leaves out thoughts" in rollout.score.detail


@pytest.fixture(scope="module")
def engine() -> Iterator[AsyncEngine]:
    made = tiny_tokenizer()
    core = EngineCore(tiny_model(), EngineConfig(block_size=4, max_num_seqs=8), made.eos_ids)
    running = AsyncEngine(core, made)
    yield running
    running.stop()


class Talk:
    """Says what comes, so that the policy's own words are long enough to be cached."""

    async def reset(self, problem: Problem, seed: int) -> str:
        return "reverse the words and sort them"

    async def step(self, answer: Any) -> Turn:
        return Turn("the user asks")


def talked(engine: AsyncEngine, index: int = 0) -> Rollout:
    game = Game("talk", Talk, bounds=Bounds(turns=4, tokens=64))
    game.prepare(engine.tokenizer, engine.max_model_len)  # type: ignore[arg-type]
    ends = tuple(engine.tokenizer.encode(" the")[-1:])  # type: ignore[union-attr]
    # A random model ends its turn at one of many tokens, so that there are several turns.
    several = SamplingParams(max_tokens=12, stop_token_ids=(*range(3, 150), *ends))
    return asyncio.run(game.play(engine, Problem("", {}), several, seed=5, index=index))


def test_an_engines_tokens_have_the_log_probabilities_that_transformers_gives_them(
    engine: AsyncEngine, tmp_path
) -> None:
    models.save(tiny_model(), tmp_path)
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path, torch_dtype=torch.float32)
    seen = 0
    for index in range(3):
        rollout = talked(engine, index)
        for piece in (*rollout.earlier, rollout):
            assert piece.prompt_ids is not None
            row = torch.tensor([piece.prompt_ids + piece.token_ids])
            with torch.no_grad():
                known = theirs(row).logits[0].log_softmax(-1)
            at = len(piece.prompt_ids) - 1
            for i, (id, sampled) in enumerate(zip(piece.token_ids, piece.sampled, strict=True)):
                if sampled:
                    assert piece.logprobs[i] == pytest.approx(float(known[at + i, id]), abs=2e-4)
                    seen += 1
    assert seen > 12


def test_equal_seeds_give_equal_episodes_and_other_samples_differ(engine: AsyncEngine) -> None:
    assert talked(engine) == talked(engine)
    assert talked(engine).token_ids != talked(engine, 1).token_ids


def test_a_turn_finds_the_turns_before_it_in_the_cache(engine: AsyncEngine) -> None:
    def cached() -> float:
        return metrics.registry.get_sample_value("rondo:episode_cached_tokens_total", {"task": "talk"}) or 0

    def read() -> float:
        return metrics.registry.get_sample_value("rondo:episode_prompt_tokens_total", {"task": "talk"}) or 0

    asyncio.run(engine.reset_prefix_cache())
    before = cached(), read()
    rollout = talked(engine, 7)
    assert rollout.prompt_ids is not None
    turns = len(in_turns(engine.tokenizer, rollout)) // 2 + 1  # type: ignore[arg-type]
    assert turns > 1
    news = cached() - before[0], read() - before[1]
    whole = len(rollout.prompt_ids) + len(rollout.token_ids)
    assert news[0] > 0
    # All but the last block of each turn's past is there, and nothing but the new is computed.
    assert news[1] - news[0] <= whole + 2 * 4 * turns


def test_each_token_has_the_version_that_made_it(engine: AsyncEngine) -> None:
    class Pushes(Talk):
        async def step(self, answer: Any) -> Turn:
            await engine.start_weight_update()
            await engine.finish_weight_update(engine.weight_version + 1)
            return Turn("the user asks")

    game = Game("pushes", Pushes, bounds=Bounds(turns=3, tokens=64))
    game.prepare(engine.tokenizer, engine.max_model_len)  # type: ignore[arg-type]
    first = engine.weight_version
    several = SamplingParams(max_tokens=12, stop_token_ids=tuple(range(3, 150)))
    rollout = asyncio.run(game.play(engine, Problem("", {}), several, seed=5, index=0))
    versions = [v for v, sampled in zip(rollout.versions, rollout.sampled, strict=True) if sampled]
    turns = [sampled for sampled, _ in in_turns(engine.tokenizer, rollout)].count(True)  # type: ignore[arg-type]
    assert turns > 1
    assert sorted(set(versions)) == list(range(first, first + turns))
    assert rollout.versions == sorted(rollout.versions), "what is told has the version before it"
