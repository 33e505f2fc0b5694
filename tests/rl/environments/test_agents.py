"""Agents that speak to an endpoint of their own: what they ask is recorded with its tokens, whatever they do."""

import asyncio
import json
import os
import re
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from rondo.base.errors import ConfigError
from rondo.client.types import SamplingParams
from rondo.graders import Sample, Score
from rondo.rl.environments.agents import AgentTask, EpisodeAddress, Program
from rondo.rl.environments.environment import Bounds
from rondo.rl.rollout.types import Rollout
from rondo.rl.tasks.types import Problem
from rondo.server.episodes import EpisodeRoutes
from rondo.text.bpe import train_bpe
from rondo.text.tokenizer import Tokenizer
from server.families import HERMES
from support.speaking import Speaking

END = "<|im_end|>"
PROBLEM = Problem("work out 37*64", {"value": 2368})
SAMPLING = SamplingParams(max_tokens=200, temperature=0.7)
PROGRAM = Path(__file__).with_name("agent_program.py")


class Exact:
    async def score(self, sample: Sample) -> Score:
        right = float(sample.completion.strip() == str(sample.metadata["value"]))
        return Score("ok", right, {"correct": right})


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return train_bpe(
        ["the user asks", '{"name": "calculate", "arguments": {"sum": "'] * 3, 330, chat_template=HERMES
    )


def calculating(prompt: str) -> str:
    """Calls in blanks of its own, and then says what it was told."""
    result = re.findall(r"<tool_response>\n(.*)\n</tool_response>", prompt)
    if result:
        return result[0] + END
    sum = re.findall(r"work out (\S+?)<", prompt)[0]
    return f'<tool_call>{{"name": "calculate",   "arguments": {{"sum": "{sum}"}}}}</tool_call>{END}'


def play(
    agent: Any,
    engine: Speaking,
    grader: Any = None,
    count: int = 1,
    sampling: SamplingParams = SAMPLING,
    **bounds: Any,
) -> list[Rollout]:
    async def main() -> list[Rollout]:
        door = EpisodeRoutes()
        given = Bounds(**({"turns": 16, "tokens": 2000, "seconds": 60.0} | bounds))
        task = AgentTask("agents", lambda seed, n, split: [PROBLEM] * n, agent, door, grader, given)
        task.prepare(engine.tokenizer, 4096)
        plays = [task.play(engine, PROBLEM, sampling, 3, index) for index in range(count)]  # type: ignore[arg-type]
        rollouts = await asyncio.gather(*plays)
        await door.close()
        task.close()
        return rollouts

    return asyncio.run(main())


def turns(tokenizer: Tokenizer, rollout: Rollout) -> list[tuple[bool, str]]:
    found: list[tuple[bool, list[int]]] = []
    for id, sampled in zip(rollout.token_ids, rollout.sampled, strict=True):
        if not found or found[-1][0] != sampled:
            found.append((sampled, []))
        found[-1][1].append(id)
    return [(sampled, tokenizer.decode(ids, skip_special=False)) for sampled, ids in found]


def asking(body: Callable[[openai.OpenAI, EpisodeAddress], Any]) -> Any:
    """A plain function as an agent, with a client of OpenAI's."""

    def agent(address: EpisodeAddress, problem: Problem) -> str:
        with openai.OpenAI(base_url=address.url, api_key=address.key, max_retries=0) as client:
            return str(body(client, address) or "")

    return agent


def said(client: openai.OpenAI, messages: list[Any], **more: Any) -> str:
    made = client.chat.completions.create(model="any", messages=messages, **more)
    return made.choices[0].message.content or ""


def user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


def test_a_program_that_knows_only_of_openai_is_recorded_token_by_token(tokenizer: Tokenizer) -> None:
    engine = Speaking(tokenizer, calculating)
    engine.version = 4
    program = Program([sys.executable, str(PROGRAM)])
    for rollout in play(program, engine, Exact(), count=2):
        (_, call), (mine, result), (_, answer) = turns(tokenizer, rollout)
        assert (
            call == f'<tool_call>{{"name": "calculate",   "arguments": {{"sum": "37*64"}}}}</tool_call>{END}'
        )
        assert not mine
        assert "<tool_response>\n2368\n</tool_response>" in result
        assert answer == f"2368{END}"
        assert rollout.score == Score("ok", 1.0, {"correct": 1.0})
        assert rollout.finish_reason == "stop"
        assert rollout.earlier == ()
        assert set(rollout.versions) == {4}
        assert {(s, p) for s, p in zip(rollout.sampled, rollout.logprobs, strict=True)} == {
            (True, -0.25),
            (False, 0.0),
        }
        prompts = [list(request.prompt_ids) for request in engine.requests]
        assert rollout.prompt_ids in prompts
        second = len(tokenizer.encode(call, add_special=False)) + len(
            tokenizer.encode(result, add_special=False)
        )
        assert (rollout.prompt_ids or []) + rollout.token_ids[:second] in prompts, "never tokenized again"
    for request in engine.requests:
        drawn = request.sampling
        assert (drawn.temperature, drawn.logprobs, drawn.logprobs_mode) == (0.7, 0, "scaled"), (
            "as the learner's"
        )
    assert len({request.sampling.seed for request in engine.requests}) == 4


def test_histories_that_do_not_go_on_are_branches_and_each_token_is_taught_once(tokenizer: Tokenizer) -> None:
    answers = iter(["one", "two", "three", "four", "five"])
    engine = Speaking(tokenizer, lambda _: next(answers) + END)

    def agent(client: openai.OpenAI, address: EpisodeAddress) -> None:
        first = said(client, [user("a")])
        base = [user("a"), {"role": "assistant", "content": first}, user("b")]
        said(client, base)
        said(client, base)  # again, from the same place
        said(client, [{"role": "system", "content": "other"}, user("a")])
        said(client, [user("a"), {"role": "assistant", "content": "edited"}, user("b")])
        httpx.post(
            address.reward_url,
            json={"reward": 0.5, "parts": {"x": 1}},
            headers={"Authorization": f"Bearer {address.key}"},
        ).raise_for_status()

    (rollout,) = play(asking(agent), engine)
    pieces = (*rollout.earlier, rollout)
    shown = [[text.strip("\n") for _, text in turns(tokenizer, piece)] for piece in pieces]
    between = "\n<|im_start|>user\nb<|im_end|>\n<|im_start|>assistant\n".strip("\n")
    assert shown[0] == [f"one{END}", between, f"two{END}"]
    assert shown[1] == [f"one{END}\n{between}\n".rstrip("\n"), f"three{END}"]
    assert shown[2:] == [[f"four{END}"], [f"five{END}"]]
    assert sum(sum(piece.sampled) for piece in pieces) == sum(
        len(tokenizer.encode(word + END)) for word in ("one", "two", "three", "four", "five")
    )
    assert "edited" in tokenizer.decode(pieces[-1].prompt_ids or [])
    assert rollout.score == Score("ok", 0.5, {"x": 1.0})
    assert [piece.score for piece in rollout.earlier] == [None] * 3


def test_streams_samples_and_other_endpoints_are_recorded_too(tokenizer: Tokenizer) -> None:
    engine = Speaking(tokenizer, lambda _: f"hello there{END}")

    def agent(client: openai.OpenAI, address: EpisodeAddress) -> str:
        events = client.chat.completions.create(model="m", messages=[user("a")], stream=True)
        text = "".join(event.choices[0].delta.content or "" for event in events if event.choices)
        two = client.chat.completions.create(model="m", messages=[user("b")], n=2, logprobs=True)
        assert [choice.logprobs.content[0].logprob for choice in two.choices if choice.logprobs] == [
            -0.25
        ] * 2
        assert client.completions.create(model="m", prompt="c", max_tokens=3).choices[0].text
        assert client.responses.create(model="m", input="d").output_text == "hello there"
        assert [model.id for model in client.models.list()] == ["policy"]
        return text

    (rollout,) = play(asking(agent), engine, grader=Exact())
    assert [sum(piece.sampled) for piece in rollout.earlier][3] == 3
    assert len(rollout.earlier) == 4
    assert rollout.score is not None
    assert rollout.score.total == 0


def test_one_that_leaves_thoughts_out_gets_a_branch(tokenizer: Tokenizer) -> None:
    engine = Speaking(tokenizer, lambda _: f"<think>\nhm\n</think>\n\nyes{END}")

    def agent(client: openai.OpenAI, address: EpisodeAddress) -> None:
        made = client.chat.completions.create(model="m", messages=[user("a")]).choices[0].message
        assert made.content == "yes"
        said(client, [user("a"), {"role": "assistant", "content": made.content}, user("b")])
        kept = {"role": "assistant", "content": made.content, "reasoning_content": made.reasoning_content}  # type: ignore[attr-defined]
        said(client, [user("a"), kept, user("b")])

    (rollout,) = play(asking(agent), engine, grader=Exact())
    forgot, kept = (*rollout.earlier, rollout)
    assert "hm" not in tokenizer.decode(forgot.prompt_ids or [])
    assert [sampled for sampled, _ in turns(tokenizer, kept)] == [True, False, True]


def test_a_key_opens_its_own_episode_alone_and_none_after_its_end(tokenizer: Tokenizer) -> None:
    seen: list[EpisodeAddress] = []

    def agent(client: openai.OpenAI, address: EpisodeAddress) -> str:
        seen.append(address)
        for url, key in (
            (address.url, "wrong"),
            (address.url, ""),
            (address.url.replace("episode-", "episode-0"), address.key),
        ):
            answer = httpx.post(
                f"{url}/chat/completions", json={}, headers={"Authorization": f"Bearer {key}"} if key else {}
            )
            assert answer.status_code == 401
            assert answer.json()["error"]["code"] == "invalid_api_key"
        with pytest.raises(openai.ConflictError, match="graded by its task"):
            client.post(address.reward_url, body={"reward": 1.0}, cast_to=object)
        with pytest.raises(openai.BadRequestError, match="temprature"):
            client.chat.completions.create(model="m", messages=[user("a")], extra_body={"temprature": 1})  # type: ignore[list-item]
        with pytest.raises(openai.BadRequestError, match="the learner knows nothing of it"):
            client.chat.completions.create(model="m", messages=[user("a")], logit_bias={"5": 3})  # type: ignore[list-item]
        if len(seen) == 2:
            other = openai.OpenAI(base_url=seen[0].url, api_key=seen[0].key, max_retries=0)
            with pytest.raises(openai.AuthenticationError):
                other.models.list()
        return said(client, [user("a")])

    engine = Speaking(tokenizer, lambda _: f"2368{END}")

    async def main() -> list[Rollout]:
        door = EpisodeRoutes()
        task = AgentTask("agents", lambda seed, n, split: [], asking(agent), door, Exact())
        task.prepare(tokenizer, 4096)
        rollouts = [await task.play(engine, PROBLEM, SAMPLING, 0, i) for i in range(2)]  # type: ignore[arg-type]
        await door.close()
        return rollouts

    for rollout in asyncio.run(main()):
        assert rollout.score is not None
        assert (rollout.finish_reason, rollout.score.total) == ("stop", 1.0), rollout.score.detail


def test_rewards_are_posted_once_and_are_numbers(tokenizer: Tokenizer) -> None:
    def agent(client: openai.OpenAI, address: EpisodeAddress) -> None:
        for body in ({"reward": "x"}, {}, {"reward": 1, "more": 2}):
            with pytest.raises(openai.BadRequestError):
                client.post(address.reward_url, body=body, cast_to=object)
        client.post(address.reward_url, body={"reward": 1, "parts": {"a": 0.5}}, cast_to=object)
        with pytest.raises(openai.ConflictError):
            client.post(address.reward_url, body={"reward": 0}, cast_to=object)

    (rollout,) = play(asking(agent), Speaking(tokenizer, lambda _: END))
    assert rollout.score == Score("ok", 1.0, {"a": 0.5})
    assert (rollout.token_ids, rollout.earlier) == ([], ())
    (silent,) = play(asking(lambda client, address: None), Speaking(tokenizer, lambda _: END))
    assert silent.score is not None
    assert (silent.score.outcome, silent.score.detail) == (
        "error",
        "the agent ended and has posted no reward",
    )


def test_an_agent_that_fails_is_not_judged_and_one_that_spends_its_bound_earns_nothing(
    tokenizer: Tokenizer,
) -> None:
    engine = Speaking(tokenizer, lambda _: f"ok{END}")

    def asks_on(client: openai.OpenAI, address: EpisodeAddress) -> None:
        messages: list[Any] = [user("a")]
        while True:
            messages += [{"role": "assistant", "content": said(client, messages)}, user("more")]

    (rollout,) = play(asking(asks_on), engine, grader=Exact(), turns=3)
    assert rollout.finish_reason == "turns"
    assert rollout.score is not None
    assert (rollout.score.outcome, rollout.score.total) == ("ok", 0.0)
    assert "has had its 3 answers" in rollout.score.detail
    assert len(turns(tokenizer, rollout)) == 5
    (rollout,) = play(asking(asks_on), engine, grader=Exact(), tokens=7)
    assert rollout.finish_reason == "length"
    assert sum(rollout.sampled) == 7

    def breaks(client: openai.OpenAI, address: EpisodeAddress) -> None:
        said(client, [user("a")])
        raise KeyError("broken")

    (rollout,) = play(asking(breaks), engine, grader=Exact())
    assert rollout.finish_reason == "error"
    assert rollout.score is not None
    assert rollout.score.outcome == "error"
    assert "KeyError" in rollout.score.detail


def test_a_program_that_fails_or_hangs_is_ended_with_what_it_has_begun(
    tokenizer: Tokenizer, tmp_path: Path
) -> None:
    engine = Speaking(tokenizer, lambda _: f"ok{END}")
    fails = Program([sys.executable, "-c", "import sys; sys.exit('no such thing')"])
    (rollout,) = play(fails, engine, grader=Exact())
    assert rollout.finish_reason == "error"
    assert rollout.score is not None
    assert "ended with 1: no such thing" in rollout.score.detail

    file = tmp_path / "child"
    child = f"import os, time; open({str(file)!r}, 'w').write(str(os.getpid())); time.sleep(60)"
    hangs = Program(
        [sys.executable, "-c", f"import subprocess, sys; subprocess.run([sys.executable, '-c', {child!r}])"]
    )
    (rollout,) = play(hangs, engine, grader=Exact(), seconds=3.0)
    assert rollout.finish_reason == "time"
    assert rollout.score is not None
    assert rollout.score.outcome == "timeout"
    if file.exists():
        assert _gone(int(file.read_text()))


def _gone(pid: int) -> bool:
    for _ in range(1000):
        state = Path(f"/proc/{pid}/stat")
        if not state.exists() or state.read_text().rpartition(")")[2].split()[0] == "Z":
            return True
        time.sleep(0.01)
    return False


def test_the_question_and_the_endpoint_are_where_programs_look(tokenizer: Tokenizer) -> None:
    shows = (
        "import json, os, sys; names = ['OPENAI_BASE_URL', 'OPENAI_API_KEY', 'RONDO_REWARD_URL', 'MINE'];"
        "print(json.dumps([sys.stdin.read(), *(os.environ[n] for n in names)]))"
    )
    heard: list[str] = []

    class Hears:
        async def score(self, sample: Sample) -> Score:
            heard.extend(json.loads(sample.completion))
            return Score("ok", 1.0)

    play(
        Program([sys.executable, "-c", shows], env={"MINE": "x"}), Speaking(tokenizer, lambda _: END), Hears()
    )
    question, url, key, reward, mine = heard
    assert question == PROBLEM.question
    assert url.startswith("http://127.0.0.1:")
    assert reward == url.removesuffix("v1") + "reward"
    assert key
    assert mine == "x"


def environment_of(program: Program) -> dict[str, str]:
    address = EpisodeAddress("http://127.0.0.1:9/v1", "the episode's key")
    found: dict[str, str] = json.loads(asyncio.run(program(address, PROBLEM)))
    return found


def test_a_program_gets_no_keys_of_the_trainer_s_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    secrets = ("HF_TOKEN", "WANDB_API_KEY", "RONDO_ADMIN_KEY", "AWS_SECRET_ACCESS_KEY", "HTTPS_PROXY")
    for name in (*secrets, "OPENAI_API_KEY", "OPENAI_ORG_ID"):
        monkeypatch.setenv(name, "the trainer's")
    monkeypatch.setenv("LANG", "C.UTF-8")
    shows = [sys.executable, "-c", "import json, os; print(json.dumps(dict(os.environ)))"]
    found = environment_of(Program(shows))
    assert "the trainer's" not in found.values()
    assert found["OPENAI_API_KEY"] == "the episode's key"
    assert (found["PATH"], found["LANG"]) == (os.environ["PATH"], "C.UTF-8")
    found = environment_of(Program(shows, pass_env=["HF_TOKEN", "NOT_SET"], env={"MINE": "x"}))
    assert [name for name, value in found.items() if value == "the trainer's"] == ["HF_TOKEN"]
    assert (found["MINE"], "NOT_SET" in found) == ("x", False)
    with pytest.raises(ConfigError, match=r"write \['HF_TOKEN'\]"):
        Program(shows, pass_env="HF_TOKEN")
