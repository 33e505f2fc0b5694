"""GGUF files against llama.cpp: it gives our greedy tokens and logits for what we write, we read what it quantizes, and
tokenizers agree with it and, for vocabularies of real models, with the original tokenizers."""

import json
from pathlib import Path
from typing import Any

import gguf
import pytest
import torch

from rondo import models
from rondo.base.storage.gguf import read_gguf
from rondo.client.types import SamplingParams
from rondo.engine.config import EngineConfig
from rondo.engine.entrypoints.llm import LLM
from rondo.models import Decoder, Packed
from rondo.models.files.gguf.export import export_gguf
from rondo.models.files.mapping import to_hf
from rondo.text.tokenizer import Tokenizer
from support.peers import PEERS, run_peer
from support.tiny import TINY_MOE, TINY_OLMO, VOCAB, tiny_model, tiny_tokenizer

pytestmark = [pytest.mark.real, pytest.mark.timeout(900)]

PEER = Path(__file__).with_name("_llama_cpp_gguf.py")
GEMMA = {"hidden_activation": "gelu_pytorch_tanh", "query_pre_attn_scalar": 32, "sliding_window": 8}
CASES: dict[str, dict[str, Any]] = {
    "llama": {"model_type": "llama", "tie_word_embeddings": False},
    "llama 3": {
        "model_type": "llama",
        "rope_scaling": {
            "rope_type": "llama3",
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 64,
        },
    },
    "mixtral": {"model_type": "mixtral", "num_local_experts": 4, "num_experts_per_tok": 2},
    "qwen2": {"model_type": "qwen2"},
    "qwen3": {},
    "qwen3-yarn": {
        "rope_scaling": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}
    },
    "qwen3-moe": TINY_MOE | {"moe_intermediate_size": 32},
    "smollm3": {"model_type": "smollm3", "num_hidden_layers": 4},
    "gemma2": GEMMA
    | {"model_type": "gemma2", "attn_logit_softcapping": 5.0, "final_logit_softcapping": 30.0}
    | {"num_hidden_layers": 3},
    "gemma3": GEMMA | {"model_type": "gemma3_text", "num_hidden_layers": 6},
    "phi3": {"model_type": "phi3", "tie_word_embeddings": False},
    "olmo2": TINY_OLMO,
}
SHAPE = {"hidden_size": 128, "intermediate_size": 96, "head_dim": 32}
TOKENS = [(7 * i * i + 3) % VOCAB for i in range(40)]
TYPES = {"F16": torch.float16, "BF16": torch.bfloat16, "F32": torch.float32}


def ask(*tasks: dict[str, Any]) -> list[Any]:
    lines = "".join(json.dumps(task) + "\n" for task in tasks)
    return [json.loads(line) for line in run_peer("llama", PEER, asked=lines, seconds=600).splitlines()]


def written(folder: Path, dtype: torch.dtype, model: Decoder, type_name: str | None = None) -> Path:
    models.save(model.to(dtype), folder / "model")
    tiny_tokenizer().save(folder / "model")
    return export_gguf(folder / "model", folder / "file.gguf", type_name)


def logits(model: Decoder, tokens: list[int]) -> torch.Tensor:
    packed = Packed([0, len(tokens)])
    with torch.no_grad():
        return model(torch.tensor(tokens), packed.positions, packed).float()


@pytest.mark.parametrize("case", CASES)
def test_logits(case: str, tmp_path: Path) -> None:
    file = written(tmp_path, torch.float32, tiny_model(**SHAPE | CASES[case]))
    [theirs] = ask({"file": str(file), "tokens": TOKENS})
    ours = logits(models.load(file), TOKENS)
    torch.testing.assert_close(ours, torch.tensor(theirs), rtol=2e-3, atol=2e-3)


def memorized(changes: dict[str, Any]) -> tuple[Decoder, list[list[int]]]:
    """A model that knows some sequences by heart: its greedy tokens do not depend on the rounding of activations, which
    differs between the engines for 16-bit weights."""
    torch.manual_seed(0)
    model = tiny_model(**SHAPE | changes | {"initializer_range": 0.05})
    rows = [
        [(a * i + b * (i % 5)) % (VOCAB - 3) + 3 for i in range(32)] for a, b in ((7, 11), (13, 29), (31, 3))
    ]
    packed = Packed([0, 31, 62, 93])
    inputs = torch.tensor([token for row in rows for token in row[:-1]])
    targets = torch.tensor([token for row in rows for token in row[1:]])
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3, weight_decay=0.0)
    for _ in range(150):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(inputs, packed.positions, packed).float(), targets).backward()
        optimizer.step()
    return model, rows


@pytest.mark.parametrize("type_name", ["F16", "BF16"])
@pytest.mark.parametrize("case", ["llama", "qwen3", "gemma2"])
def test_greedy_tokens(case: str, type_name: str, tmp_path: Path) -> None:
    model, rows = memorized(CASES[case])
    file = written(tmp_path, TYPES[type_name], model)
    theirs = ask(*({"file": str(file), "prompt": row[:6], "count": 24} for row in rows))
    params = SamplingParams(temperature=0, max_tokens=24, ignore_eos=True)
    outputs = LLM(file, config=EngineConfig()).generate([row[:6] for row in rows], params)
    assert [output.outputs[0].token_ids for output in outputs] == theirs
    assert theirs == [row[6:30] for row in rows]


@pytest.mark.parametrize("type_name", ["Q4_K_M", "Q5_K_M", "Q6_K", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1"])
def test_files_that_llama_cpp_quantizes(type_name: str, tmp_path: Path) -> None:
    """The weights are those that llama.cpp's package dequantizes; logits differ only by its rounding of activations."""
    shape = SHAPE | {"hidden_size": 256, "intermediate_size": 512}
    whole = written(tmp_path, torch.float32, tiny_model(**shape | CASES["qwen3"]))
    file = tmp_path / f"{type_name}.gguf"
    done, theirs = ask(
        {"quantize": str(whole), "to": str(file), "type": type_name}, {"file": str(file), "tokens": TOKENS}
    )
    assert done
    read = models.load(file, dtype=torch.float32)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.QWEN3, 2)
    stored = {tensor.name: tensor for tensor in gguf.GGUFReader(file).tensors}
    for name, tensor in to_hf(read):
        entry = stored[names.get_name(name, try_suffixes=(".weight",)) or ""]
        expected = torch.from_numpy(gguf.quants.dequantize(entry.data, entry.tensor_type).copy())
        assert torch.equal(tensor, expected.view(tensor.shape)), name
    kept = models.load(file, dtype=torch.float32, keep_quantized=True)
    for model in (read, kept):
        ours, expected = logits(model, TOKENS), torch.tensor(theirs)
        assert torch.nn.functional.cosine_similarity(ours, expected).min() > 0.995
    if type_name == "Q4_K_M":
        assert {entry.type.name for entry in read_gguf(file).tensors.values()} >= {"Q4_K", "Q6_K"}


@pytest.mark.parametrize("type_name", ["Q8_0", "Q4_0"])
def test_llama_cpp_reads_what_we_quantize(type_name: str, tmp_path: Path) -> None:
    file = written(tmp_path, torch.float32, tiny_model(**SHAPE), type_name)
    [theirs] = ask({"file": str(file), "tokens": TOKENS})
    ours = logits(models.load(file, dtype=torch.float32), TOKENS)
    assert torch.nn.functional.cosine_similarity(ours, torch.tensor(theirs)).min() > 0.995


NAMES = (
    *(
        "llama-bpe",
        "llama-spm",
        "qwen2",
        "qwen35",
        "gpt-2",
        "phi-3",
        "command-r",
        "starcoder",
        "refact",
        "mpt",
    ),
    "deepseek-coder",
)


@pytest.mark.parametrize("name", NAMES)
def test_vocabularies_of_real_models(name: str) -> None:
    file = PEERS / "llama_vocab" / f"ggml-vocab-{name}.gguf"
    if not file.exists():
        pytest.fail(f"{file} is missing: run `bash tests/real/setup.sh`", pytrace=False)
    texts = file.with_suffix(".gguf.inp").read_bytes().decode().split("\n__ggml_vocab_test__\n")
    lines = file.with_suffix(".gguf.out").read_text().split("\n")
    tokenizer = Tokenizer.load(file)
    for text, line in zip(texts, lines, strict=False):
        ids = [int(number) for number in line.split()]
        assert tokenizer.encode(text, add_special=False) == ids, text
        assert tokenizer.decode(ids, skip_special=False) == text
    assert len(texts) > 40


def test_llama_cpp_has_our_tokens(tmp_path: Path) -> None:
    file = written(tmp_path, torch.bfloat16, tiny_model(**SHAPE))
    texts = ["the user asks", " 123 \n\n größer — 日本 🚀", "<|im_start|>user\nhi<|im_end|>", "I'LL we've"]
    [theirs] = ask({"file": str(file), "texts": texts})
    assert theirs == [Tokenizer.load(file).encode(text) for text in texts]
    assert theirs == [tiny_tokenizer().encode(text) for text in texts]
