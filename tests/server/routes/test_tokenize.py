"""What `/tokenize` says is what the model is given, and what transformers would give it."""

import httpx
import pytest
import transformers

CHAT = [{"role": "user", "content": "abc def"}]


@pytest.fixture(scope="module")
def peer(model_folder):
    return transformers.AutoTokenizer.from_pretrained(model_folder)


@pytest.fixture
def client(running):
    with httpx.Client(base_url=running.url) as client:
        yield client


def test_a_prompts_tokens_are_those_of_transformers(client, peer):
    answer = client.post(
        "/tokenize", json={"model": "tiny", "prompt": "abc def <|im_end|> é", "return_token_strs": True}
    )
    ids = peer("abc def <|im_end|> é")["input_ids"]
    assert answer.json() == {
        "count": len(ids),
        "max_model_len": 512,
        "tokens": ids,
        "token_strs": peer.convert_ids_to_tokens(ids),
    }
    assert client.post("/tokenize", json={"prompt": "abc"}).json()["token_strs"] is None
    assert client.post("/tokenize", json={"prompt": ""}).json()["count"] == 0


@pytest.mark.parametrize("more", [{}, {"add_generation_prompt": False}])
def test_a_conversations_tokens_are_what_chat_counts(client, peer, more):
    tokens = client.post("/tokenize", json={"messages": CHAT} | more).json()["tokens"]
    text = peer.apply_chat_template(CHAT, tokenize=False, add_generation_prompt=not more)
    assert tokens == peer(text, add_special_tokens=False)["input_ids"]
    asked = {"model": "tiny", "messages": CHAT, "max_tokens": 1} | more
    assert client.post("/v1/chat/completions", json=asked).json()["usage"]["prompt_tokens"] == len(tokens)


def test_there_and_back(client):
    text = "abc, é <|im_end|> \u2028 x"
    tokens = client.post("/tokenize", json={"prompt": text}).json()["tokens"]
    assert client.post("/detokenize", json={"model": "tiny", "tokens": tokens}).json() == {"prompt": text}
    assert client.post("/detokenize", json={"tokens": []}).json() == {"prompt": ""}


def test_a_great_many_tokens_are_written_beside_the_loop(client, monkeypatch):
    sizes = []

    async def noted(size, work):
        sizes.append(size)
        return work()

    monkeypatch.setattr("rondo.server.routes.tokenize.beside", noted)
    client.post("/tokenize", json={"prompt": "abc " * 5000}).raise_for_status()
    client.post("/detokenize", json={"tokens": [70] * 9000}).raise_for_status()
    assert min(sizes) > 5000
    assert sizes[1] == 9000


def test_a_text_longer_than_the_context_is_counted_all_the_same(client):
    answer = client.post("/tokenize", json={"prompt": "abc " * 5000}).json()
    assert answer["count"] > 5000 > answer["max_model_len"]


@pytest.mark.parametrize(
    ("route", "body", "status", "param"),
    [
        ("/tokenize", {}, 400, "prompt"),
        ("/tokenize", {"prompt": "a", "messages": CHAT}, 400, "prompt"),
        ("/tokenize", {"prompt": "a", "add_generation_prompt": True}, 400, "add_generation_prompt"),
        (
            "/tokenize",
            {"messages": CHAT, "add_generation_prompt": True, "continue_final_message": True},
            400,
            "continue_final_message",
        ),
        ("/tokenize", {"messages": []}, 400, "messages"),
        ("/tokenize", {"prompt": "a", "model": "gpt"}, 404, "model"),
        ("/tokenize", {"prompt": 5}, 400, "prompt"),
        ("/detokenize", {"tokens": [10**6]}, 400, "tokens"),
        ("/detokenize", {"tokens": [2**70]}, 400, "tokens"),
        ("/detokenize", {"tokens": [-1]}, 400, "tokens"),
        ("/detokenize", {"tokens": "abc"}, 400, "tokens"),
    ],
)
def test_what_is_wrong_is_named(client, route, body, status, param):
    answer = client.post(route, json=body)
    assert (answer.status_code, answer.json()["error"]["param"]) == (status, param)
