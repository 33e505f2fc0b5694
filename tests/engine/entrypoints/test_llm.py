"""`rondo.LLM` as scripts use it: models by name, and conversations."""

import shutil
from pathlib import Path

import pytest

import rondo
from rondo.base.errors import InvalidRequest, NotFound
from rondo.engine.config import EngineConfig
from rondo.models import save
from rondo.models.store import import_model
from support.home import own_home
from support.tiny import tiny_model, tiny_tokenizer

GREEDY = rondo.SamplingParams(temperature=0.0, max_tokens=8, ignore_eos=True)
ASK = [{"role": "user", "content": "the user asks"}]
FOLLOW = [*ASK, {"role": "assistant", "content": "and"}, {"role": "user", "content": "to"}]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("llm") / "source"
    save(tiny_model(), folder)
    tiny_tokenizer().save(folder)
    return folder


@pytest.fixture(scope="module")
def llm(folder: Path) -> rondo.LLM:
    return rondo.LLM(folder)


def test_a_model_by_its_name(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, llm: rondo.LLM):
    monkeypatch.setenv("RONDO_HOME", str(own_home(tmp_path)))
    import_model(folder, "tiny")
    [named] = rondo.LLM("tiny").chat(ASK, GREEDY)
    [placed] = llm.chat(ASK, GREEDY)
    assert named.outputs[0].token_ids == placed.outputs[0].token_ids
    with pytest.raises(NotFound, match="Did you mean tiny"):
        rondo.LLM("tinny")


def test_chat_is_the_template_then_generate(folder: Path, llm: rondo.LLM):
    """The prompts are those of transformers' `apply_chat_template`."""
    transformers = pytest.importorskip("transformers")
    peer = transformers.AutoTokenizer.from_pretrained(folder)
    one, other = llm.chat([ASK, FOLLOW], [GREEDY, rondo.SamplingParams(n=2, max_tokens=4)])
    for output, conversation in ((one, ASK), (other, FOLLOW)):
        want = peer.apply_chat_template(conversation, add_generation_prompt=True, return_dict=False)
        assert output.prompt_token_ids == want
        assert output.prompt == peer.decode(want)
    assert [len(one.outputs), len(other.outputs)] == [1, 2]
    [again] = llm.generate([one.prompt_token_ids], GREEDY)
    assert again.outputs[0].token_ids == one.outputs[0].token_ids
    assert llm.chat([]) == []


def test_chat_continues_the_last_message(llm: rondo.LLM):
    open_end = [*ASK, {"role": "assistant", "content": [{"type": "text", "text": "and the"}]}]
    [output] = llm.chat(open_end, GREEDY, add_generation_prompt=False, continue_final_message=True)
    assert output.prompt is not None
    assert output.prompt.endswith("and the")


TOOLS = [{"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}]


def test_chat_shows_tools_and_variables_to_the_template(folder: Path, tmp_path: Path):
    """As transformers does."""
    transformers = pytest.importorskip("transformers")
    shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
    template = (
        "{{ tone }}{% for tool in tools or [] %}{{ tool | tojson }}{% endfor %}{{ messages[0].content }}"
    )
    (tmp_path / "chat_template.jinja").write_text(template)
    peer = transformers.AutoTokenizer.from_pretrained(tmp_path)
    [output] = rondo.LLM(tmp_path).chat(ASK, GREEDY, tools=TOOLS, chat_template_kwargs={"tone": "calm"})
    want = peer.apply_chat_template(ASK, tools=TOOLS, tone="calm", tokenize=False)
    assert "weather" in want
    assert output.prompt == want


def test_what_chat_takes_itself_is_no_variable_of_the_template(llm: rondo.LLM):
    with pytest.raises(InvalidRequest, match="chat_template_kwargs must not hold tools"):
        llm.chat(ASK, GREEDY, chat_template_kwargs={"tools": TOOLS})


@pytest.mark.parametrize(
    "messages",
    [
        "hello",
        [["hello"]],
        ["hello"],
        [{"content": "no role"}],
        [{"role": "user", "content": 3}],
        [ASK, "x"],
        3,
    ],
)
def test_what_is_no_conversation(llm: rondo.LLM, messages: object):
    with pytest.raises(InvalidRequest, match="messages must be a list of"):
        llm.chat(messages, GREEDY)  # type: ignore[arg-type]


def test_chat_without_messages_or_tokenizer(llm: rondo.LLM):
    with pytest.raises(InvalidRequest, match="messages is empty"):
        llm.chat([[]])
    with pytest.raises(InvalidRequest, match="needs a tokenizer"):
        rondo.LLM(llm.core.model).chat(ASK)


def test_after_a_reset_no_prefix_is_known(folder: Path):
    llm = rondo.LLM(folder, config=EngineConfig(block_size=4))
    prompt = list(range(20, 45))

    def ask() -> tuple[int, list[int]]:
        [output] = llm.generate([prompt], GREEDY)
        return output.cached_tokens, output.outputs[0].token_ids

    cold, answer = ask()
    warm, again = ask()
    hits = llm.core.scheduler.counters.prefix_hits
    llm.reset_prefix_cache()
    reset, anew = ask()
    assert (cold, warm, reset) == (0, 24, 0)
    assert llm.core.scheduler.counters.prefix_hits == hits
    assert answer == again == anew
    assert ask()[0] == 24
    llm.core.pool.check()
