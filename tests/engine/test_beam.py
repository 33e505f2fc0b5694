"""Beam search over the engine, beside that of transformers."""

from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from rondo import BeamSearchParams, models
from rondo.base.errors import NotFound
from rondo.engine.config import EngineConfig
from rondo.engine.llm import LLM
from support.adapters import write_lora
from support.tiny import tiny_model, tiny_tokenizer

END = 7


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("beam")
    models.save(tiny_model(initializer_range=0.35), path)
    return path


def engine(folder: Path, *ends: int) -> LLM:
    return LLM(models.load(folder), tiny_tokenizer(), EngineConfig(max_num_seqs=16), eos_ids=ends)


@pytest.fixture(scope="module")
def llm(folder) -> LLM:
    return engine(folder, END)


@pytest.fixture(scope="module")
def theirs(folder):
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()


def reference(theirs, prompt: list[int], width: int, new: int, penalty: float, end: int | None):
    """Their best sequences, without what fills up the shorter ones, and their scores."""
    with torch.inference_mode():
        out = theirs.generate(
            torch.tensor([prompt]),
            attention_mask=torch.ones(1, len(prompt), dtype=torch.int64),
            num_beams=width,
            num_return_sequences=width,
            max_new_tokens=new,
            do_sample=False,
            early_stopping="never",
            length_penalty=penalty,
            eos_token_id=end,
            pad_token_id=0,
            return_dict_in_generate=True,
            output_scores=True,
        )
    rows = out.sequences.tolist()
    ends = [row.index(end, len(prompt)) + 1 if end in row[len(prompt) :] else len(row) for row in rows]
    return [row[:at] for row, at in zip(rows, ends, strict=True)], out.sequences_scores.tolist()


@pytest.mark.parametrize("penalty", [0.0, 1.0, 2.0])
@pytest.mark.parametrize("width", [1, 2, 4, 8])
def test_as_transformers_where_nothing_ends(llm, theirs, width, penalty):
    prompt = [5, 9, 100, 3, 42, 17, 250, 8, 77]
    params = BeamSearchParams(width, 40, ignore_eos=True, length_penalty=penalty)
    (ours,) = llm.beam_search(prompt, params)
    if width == 1:
        # One beam is greedy decoding to them, without a score.
        with torch.inference_mode():
            row = theirs.generate(
                torch.tensor([prompt]), max_new_tokens=40, do_sample=False, eos_token_id=None
            )
        assert [beam.tokens for beam in ours.sequences] == row.tolist()
        return
    sequences, scores = reference(theirs, prompt, width, 40, penalty, None)
    assert [beam.tokens for beam in ours.sequences] == sequences
    assert [beam.cum_logprob / 40**penalty for beam in ours.sequences] == pytest.approx(scores, abs=1e-4)


@pytest.mark.parametrize("penalty", [-1.0, 0.0, 1.0])
@pytest.mark.parametrize("width", [2, 4])
def test_what_transformers_finds_is_found_where_end_tokens_end(folder, theirs, width, penalty):
    """Theirs leaves out ends that are not among the `width` likeliest continuations of a step, so that ours may find
    more; and its lengths count the end token, but not the prompt."""

    def score(tokens: list[int], total: float) -> float:
        return total / (len(tokens) - (tokens[-1] == end)) ** penalty

    ended = 0
    for start in range(20, 26):
        ((free, *_),) = [
            out.sequences for out in engine(folder).beam_search([start], BeamSearchParams(width, 4))
        ]
        end = free.tokens[3]
        params = BeamSearchParams(width, 12, length_penalty=penalty, include_stop_str_in_output=True)
        (ours,) = engine(folder, end).beam_search([start], params)
        found = {tuple(beam.tokens): beam.cum_logprob for beam in ours.sequences}
        worst = min(score(beam.tokens, beam.cum_logprob) for beam in ours.sequences)
        for tokens, scored in zip(*reference(theirs, [start], width, 12, penalty, end), strict=True):
            total = scored * (len(tokens) - 1) ** penalty
            if score(tokens, total) > worst + 1e-4:
                assert found[tuple(tokens)] == pytest.approx(total, abs=1e-4)
                ended += tokens[-1] == end
        for tokens, total in found.items():
            with torch.inference_mode():
                logprobs = theirs(torch.tensor([tokens])).logits[0].log_softmax(-1)
            own = sum(logprobs[i - 1, tokens[i]].item() for i in range(1, len(tokens)))
            assert total == pytest.approx(own, abs=1e-4)
    assert ended > 0 or penalty > 0


def test_several_prompts_and_adapters(folder, llm, tmp_path):
    write_lora(llm.core.model, tmp_path / "a", r=4, targets=("q_proj", "v_proj"))
    llm.load_adapter("a", tmp_path / "a")
    params = BeamSearchParams(3, 6)
    prompts = [[5, 9, 100], [42] * 20]
    both = llm.beam_search(prompts, params, adapter=["a", None])
    alone = [llm.beam_search(prompts[0], params, adapter="a")[0], llm.beam_search(prompts[1], params)[0]]
    tokens = [[beam.tokens for beam in out.sequences] for out in both]
    assert tokens == [[beam.tokens for beam in out.sequences] for out in alone]
    assert tokens[0] != [beam.tokens for beam in llm.beam_search(prompts[0], params)[0].sequences]
    assert both[0].sequences[0].text == llm.tokenizer.decode(tokens[0][0])
    with pytest.raises(NotFound):
        llm.beam_search(prompts, params, adapter="none")
    assert not llm.core.has_work
