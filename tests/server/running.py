"""A tiny model with a real tokenizer, served from a thread on a free port, once a module."""

import random
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import uvicorn

from rondo.engine.config import EngineConfig
from rondo.engine.entrypoints.async_engine import AsyncEngine
from rondo.models import new, save
from rondo.server.config import ServerConfig
from rondo.server.load import load_app
from rondo.text.bpe import train_bpe
from rondo.text.conversation.templates import CHATML_TOKENS
from rondo.web.run import bind, make_server, run_server, url_of

TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def make_model(
    folder: Path, template: str = TEMPLATE, special: Sequence[str] = CHATML_TOKENS, context: int = 512
) -> Path:
    rng = random.Random(0)
    words = ["".join(rng.choice("abcdefgh") for _ in range(rng.randrange(2, 6))) for _ in range(200)]
    texts = [" ".join(rng.choice(words) for _ in range(30)) for _ in range(40)]
    tokenizer = train_bpe(texts, 400, special, template)
    config = {
        "model_type": "qwen3",
        "architectures": ["Qwen3ForCausalLM"],
        "vocab_size": tokenizer.vocab_size,
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "max_position_embeddings": context,
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "tie_word_embeddings": True,
        "hidden_act": "silu",
        "attention_bias": False,
        "initializer_range": 0.3,
        "eos_token_id": tokenizer.eos_ids[0],
    }
    save(new(config, seed=0), folder)
    tokenizer.save(folder)
    return folder


@dataclass
class Running:
    url: str
    engine: AsyncEngine
    server: uvicorn.Server


def start(
    model: str | Path, engine: EngineConfig | None = None, config: ServerConfig | None = None
) -> Iterator[Running]:
    config = config or ServerConfig(port=0)
    # Requests that the tests write by hand call the server x.
    config = config.model_copy(update={"allowed_hosts": [*config.allowed_hosts, "x"]})
    listener = bind("127.0.0.1", 0)
    app, running, _ = load_app(model, engine or EngineConfig(max_num_seqs=8), config)
    server = make_server(app, config)
    started = threading.Event()
    thread = threading.Thread(target=run_server, args=(server, listener, started.set), daemon=True)
    thread.start()
    assert started.wait(60)
    yield Running(url_of(listener), running, server)
    server.should_exit = True
    thread.join(60)
    running.stop()
    listener.close()


def begun(running: Running, tokens: int = 3) -> None:
    """Waits for a request that has some tokens."""
    core = running.engine.core
    for _ in range(30_000):
        if any(request.generated >= tokens for request in list(core.scheduler.running)):
            return
        time.sleep(0.002)
    raise AssertionError("it did not begin")
